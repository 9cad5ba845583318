// Draws every chart of the page, by day or by night, and says when all are there (data-figures on <html>).
(() => {
  const night = Object.entries(JSON.parse(document.getElementById("night").textContent));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const holders = [...document.querySelectorAll(".chart")];
  let turn = 0;

  async function draw() {
    const mine = ++turn;
    let failed = 0;
    for (const holder of holders) {
      if (mine !== turn) return;
      let spec = document.getElementById(holder.dataset.spec).textContent;
      if (dark.matches) for (const [day, other] of night) spec = spec.replaceAll(`"${day}"`, `"${other}"`);
      try {
        await vegaEmbed(holder, JSON.parse(spec), {
          actions: false,
          renderer: "svg",
          tooltip: { theme: dark.matches ? "dark" : "light" },
        });
      } catch (error) {
        failed += 1;
        holder.textContent = `This figure could not be drawn: ${error.message}`;
        console.error(error);
      }
    }
    document.documentElement.dataset.figures = failed ? `${failed} failed` : "drawn";
  }

  draw();
  dark.addEventListener("change", draw);
})();
