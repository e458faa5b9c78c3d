"""packaging/*.py as modules. They are scripts of a folder that must stay no package: `packaging` is one of Python's own."""

from tests.scripts import ROOT, load

PACKAGING = ROOT / "packaging"

files = load("packaging/files.py")
build = load("packaging/build.py")
