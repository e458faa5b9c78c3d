"""Builds the packages: for each of bcd and bc-receiver one tree, and of it a .deb and, where rpmbuild is there, an .rpm.

    python packaging/build.py [--python python3.12] [--output dist] [--tree DIRECTORY] [PACKAGE...]

A tree has a private environment in /opt/PACKAGE (the wheels of packaging/locks/PACKAGE.txt, checked by their hashes, and this
project), its interpreter a link to the distribution's /usr/bin/python3.X, and everything else where systemd and man look for it.
Installing asks no registry. The same sources, lock and SOURCE_DATE_EPOCH (default: of the last commit) give the same bytes.
"""

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent


@dataclass(frozen=True, slots=True)
class Package:
    """What one package has. `programs`: name -> the module whose main() it runs; `without`: the other side's code."""

    name: str
    summary: str
    programs: Mapping[str, str]
    without: tuple[str, ...]
    units: tuple[str, ...]
    enabled: tuple[str, ...]  # units that are enabled and started when it is installed
    config: str
    text: str

    @property
    def opt(self) -> str:
        """The private environment, below /."""
        return f"opt/{self.name}"


PACKAGES = {
    "bcd": Package(
        name="bcd",
        summary="node agent of better-compute: inventory, faults and health of a GPU host",
        programs={"bcd": "agent.cli"},
        without=("receiver",),
        units=("bcd.service", "bcd-helper.socket", "bcd-helper@.service"),
        enabled=("bcd-helper.socket", "bcd.service"),
        config="etc/bcd/bcd.toml",
        text="It collects, watches the kernel log and reports to a bc-receiver once the node has joined (bcd join).",
    ),
    "bc-receiver": Package(
        name="bc-receiver",
        summary="receiver of better-compute: reports of GPU hosts as placement facts in Postgres",
        programs={"bc-receiver": "receiver.cli", "better-compute": "receiver.client.cli"},
        without=("agent",),
        units=("bc-receiver.service",),
        enabled=(),
        config="etc/better-compute/receiver.toml",
        text="Initialise it once (runuser -u bc-receiver -- bc-receiver init), then systemctl enable --now bc-receiver.",
    ),
}


@dataclass(frozen=True, slots=True)
class Target:
    """The interpreter that a package is for: `minor` is `3.12`; `path` the one that builds, /usr/bin/pythonX on the target."""

    path: str
    minor: str
    version: str  # of this project
    epoch: int  # Unix seconds: the time of every file

    @property
    def full(self) -> str:
        """The version of the package: packages of several Pythons stand side by side, and a newer Python's is newer."""
        return f"{self.version}+py{self.minor}"


def run(*argv: str | Path, **environ: str) -> str:
    """The output of a program; one that fails ends the build with its own words."""
    done = subprocess.run(
        [str(word) for word in argv], cwd=SOURCE, env=os.environ | environ, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"packaging: {argv[0]} ended with {done.returncode}")
    return done.stdout


# ---- the tree


def make_tree(package: Package, target: Target, tree: Path, wheel: Path) -> None:
    """Everything that a package installs, below `tree`."""
    site = tree / package.opt / f"lib/python{target.minor}/site-packages"
    site.mkdir(parents=True)
    pip = (sys.executable, "-m", "pip", "--python", target.path, "-qq", "install", "--no-compile", "--root-user-action=ignore")
    wheels = ("--no-deps", "--only-binary", ":all:", "--target", site)
    run(*pip, *wheels, "--require-hashes", "-r", HERE / f"locks/{package.name}.txt")
    run(*pip, *wheels, wheel)
    _prune(package, site)
    _environment(package, target, tree)
    _integration(package, tree)
    prefix = tree / package.opt
    run(target.path, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", tree, "-p", "/", prefix / "lib")
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (target.epoch, target.epoch), follow_symlinks=False)


def _prune(package: Package, site: Path) -> None:
    """Takes out what is not run: scripts that name the build's interpreter, where a wheel came from, tests, the other side."""
    doomed = [site / "bin", *(site / name for name in package.without)]
    doomed += [
        path for name in ("direct_url.json", "RECORD", "REQUESTED", "INSTALLER") for path in site.glob(f"*.dist-info/{name}")
    ]
    doomed += [path for name in ("tests", "test") for path in site.glob(f"*/{name}")]
    doomed += site.rglob("__pycache__")
    for path in doomed:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _environment(package: Package, target: Target, tree: Path) -> None:
    prefix = tree / package.opt
    (prefix / "bin").mkdir()
    (prefix / "bin/python3").symlink_to(f"../../../usr/bin/python{target.minor}")
    (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {target.minor}\n")
    (tree / "usr/bin").mkdir(parents=True)
    for program, module in package.programs.items():
        script = prefix / "bin" / program
        script.write_text(f"#!/{package.opt}/bin/python3 -I\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n")
        script.chmod(0o755)
        (tree / "usr/bin" / program).symlink_to(f"../../{package.opt}/bin/{program}")


def _integration(package: Package, tree: Path) -> None:
    """Units, users, directories, configuration, manual, completion, documents."""
    run(sys.executable, HERE / "files.py", "--package", package.name, tree)
    for page in tree.glob("usr/share/man/man*/*"):
        (page.parent / f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()
    copies = {f"systemd/{unit}": f"usr/lib/systemd/system/{unit}" for unit in package.units}
    copies |= {f"{kind}/{package.name}.conf": f"usr/lib/{kind}.d/{package.name}.conf" for kind in ("sysusers", "tmpfiles")}
    copies |= {f"../{name}": f"usr/share/doc/{package.name}/{name}" for name in ("README.md", "CHANGELOG.md")}
    if package.name == "bc-receiver":
        copies |= {f"monitoring/{path.name}": f"usr/share/{package.name}/monitoring/{path.name}" for path in _monitoring()}
    for source, place in copies.items():
        (tree / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE / source, tree / place)


def _monitoring() -> Iterator[Path]:
    """Alert rules and dashboard, for the Prometheus and Grafana that somebody has."""
    return (
        path for path in sorted((HERE / "monitoring").iterdir()) if path.suffix in (".yml", ".json") and "_test" not in path.name
    )


# ---- what is made of it


def script(name: str, package: Package) -> str:
    """A maintainer's script, of packaging/debian or packaging/rpm, for this package."""
    words = {
        "@PACKAGE@": package.name,
        "@ENABLED@": " ".join(package.enabled),
        "@UNITS@": " ".join(unit for unit in package.units if "@" not in unit),
        "@CONFIG@": package.config,
        "@SUMMARY@": package.summary,
        "@TEXT@": package.text,
        "@MORE@": f"/usr/share/{package.name}\n" if package.name == "bc-receiver" else "",
    }
    text = (HERE / name).read_text()
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def deb(package: Package, target: Target, tree: Path, output: Path, compression: str) -> Path:
    """The .deb. `compression` is dpkg-deb's: xz, zstd, gzip."""
    architecture = run("dpkg", "--print-architecture").strip()
    control = tree / "DEBIAN"
    control.mkdir()
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink() and control not in path.parents)
    sums = "".join(f"{hashlib.md5(p.read_bytes()).hexdigest()}  {p.relative_to(tree)}\n" for p in files)  # dpkg's own format
    size = sum(path.stat().st_size for path in files) // 1024
    (control / "control").write_text(
        f"Package: {package.name}\nVersion: {target.full}\nArchitecture: {architecture}\nSection: admin\nPriority: optional\n"
        f"Maintainer: better-compute <packages@better-compute.invalid>\nInstalled-Size: {size}\n"
        f"Depends: python{target.minor}, libc6, libstdc++6, systemd\n"
        f"Description: {package.summary}\n {package.text}\n"
    )
    (control / "md5sums").write_text(sums)
    (control / "conffiles").write_text(f"/{package.config}\n")
    for name in ("postinst", "prerm", "postrm"):
        (control / name).write_text(script(f"debian/{name}", package))
        (control / name).chmod(0o755)
    made = output / f"{package.name}_{target.full}_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", tree, made, SOURCE_DATE_EPOCH=str(target.epoch))
    shutil.rmtree(control)
    return made


def rpm(package: Package, target: Target, tree: Path, output: Path, work: Path) -> Path:
    """The .rpm, of the same tree."""
    spec = work / f"{package.name}.spec"
    spec.write_text(script("rpm/package.spec", package))
    macros = {"_topdir": work, "_rpmdir": output, "tree": tree, "bc_version": target.version, "python_minor": target.minor}
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    run("rpmbuild", "-bb", "--quiet", *defines, spec, SOURCE_DATE_EPOCH=str(target.epoch))
    (made,) = output.glob(f"*/{package.name}-{target.version}-1.py{target.minor}.*.rpm")
    kept = output / made.name
    made.replace(kept)
    made.parent.rmdir()
    return kept


# ---- the command


def targets(python: str) -> Target:
    """What `--python` means. Raises SystemExit when it cannot be used."""
    path = shutil.which(python)
    if path is None:
        raise SystemExit(
            f"packaging: {python} is not installed: name an interpreter of the distribution's version, --python python3.12"
        )
    minor = run(path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    if minor not in ("3.11", "3.12", "3.13"):
        raise SystemExit(f"packaging: {python} is Python {minor}; supported are 3.11 to 3.13")
    version = run(sys.executable, "-c", "import agent; print(agent.__version__)").strip()
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct").strip()
    return Target(path, minor, version, int(epoch))


def build(
    names: Sequence[str], target: Target, output: Path, kept: Path | None = None, compression: str = "xz"
) -> Iterator[Path]:
    """Builds these packages; the files. `kept`: where their trees are left too."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bc-packaging-") as work:
        epoch = {"SOURCE_DATE_EPOCH": str(target.epoch)}
        run(
            sys.executable,
            "-m",
            "pip",
            "-q",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            f"{work}/wheel",
            SOURCE,
            **epoch,
        )
        (wheel,) = Path(work, "wheel").iterdir()
        for name in names:
            tree = Path(work, name)
            make_tree(PACKAGES[name], target, tree, wheel)
            yield deb(PACKAGES[name], target, tree, output, compression)
            if shutil.which("rpmbuild"):
                yield rpm(PACKAGES[name], target, tree, output, Path(work))
            if kept:
                shutil.copytree(tree, kept / name, symlinks=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser("build.py", description="Builds .deb and .rpm packages.")
    parser.add_argument("--python", default="python3", help="the distribution's Python, by its name (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=SOURCE / "dist", help="where the packages go (default: dist)")
    parser.add_argument("--tree", type=Path, help="keep the trees here, a directory a package")
    parser.add_argument("--compression", default="xz", help="of the .debs: xz, zstd or gzip (default: %(default)s)")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(PACKAGES)}; default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.packages) - set(PACKAGES):
        parser.error(f"no package is named {', '.join(sorted(unknown))}")
    target = targets(arguments.python)
    for made in build(
        arguments.packages or list(PACKAGES), target, arguments.output.absolute(), arguments.tree, arguments.compression
    ):
        sys.stdout.write(f"{made} ({made.stat().st_size / 1e6:.1f} MB)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
