"""One TOML or JSON file that says a whole policy: the decoder, its settings, the slots, the objectives.

The command line, services and engines read the same file. It names columns, not numbers: what they hold comes
later, from a table, a batch or a request. Everything is checked when the file is read, decoder settings too,
so that a wrong word is refused before any work starts. The texts of the command line ("new>=3") are read here
as well, because they say the same things.
"""

from .decoders import DECODERS, check_settings, decoder_class, settings_of
from .labels import label_text, labels, one_hot, owners
from .policy import Policy
from .reading import amended, policy_of, policy_said, read_policy
from .stated import ByValue, Kinds
from .texts import parse_objective, parse_objectives, parse_per_group, parse_setting

__all__ = [
    "DECODERS", "ByValue", "Kinds", "Policy", "amended", "check_settings", "decoder_class", "label_text", "labels", "one_hot",
    "owners", "parse_objective", "parse_objectives", "parse_per_group", "parse_setting", "policy_of", "policy_said",
    "read_policy", "settings_of",
]  # fmt: skip
