"""What counts as the same piece of user code: its source without comments, and its values."""

import functools
import importlib
import json
import linecache
import py_compile
import random
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fpa
from fpa.identity import identity, network_identity
from fpa.sources import version_of
from fpa.values import as_json

METHOD = """
import numpy
from helper import double


def sign(images):
    return images


def mine(model, images, targets):
    return sign(double(images))
"""
HELPER = """
from far import FAR


def double(images):
    return FAR * images
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules, and returns the first of them as a new process would import it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of one size and second look alike
    known = set(sys.modules)

    def written(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for name in set(sys.modules) - known:
            del sys.modules[name]
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(texts)).replace("__", "."))

    yield written
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("edited", "old", "new"),
    [
        ("method", "sign(double", "-sign(double"),
        ("method", "    return images", "    return -images"),
        ("helper", "FAR * images", "FAR + images"),
        ("far", "FAR = 2", "FAR = 3"),
    ],
)
def test_source_counts_with_what_it_imports(write, edited, old, new):
    texts = {"method": METHOD, "helper": HELPER, "far": "FAR = 2\n"}
    first = identity(write(**texts).mine)
    assert first["name"] == "method:mine"
    assert identity(write(**texts).mine) == first
    assert old in texts[edited]
    changed = texts | {edited: texts[edited].replace(old, new)}
    second = identity(write(**changed).mine)
    assert second["code"] != first["code"]
    assert second | {"code": first["code"]} == first


@pytest.mark.parametrize(
    "layout",
    [
        lambda text: f'"""Says what it is for."""\n{text}\n# the end\n',
        lambda text: text.replace("(model, images, targets)", "(\n    model, images, targets\n)"),
        lambda text: text.replace("):\n", '):\n    """Does it."""\n'),
        lambda text: text.replace("\n\n\n", "\n\n# between\n\n\n"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(write, layout):
    texts = {"method": METHOD, "helper": HELPER, "far": "FAR = 2\n"}
    first = identity(write(**texts).mine)
    other = {name: layout(text) for name, text in texts.items()}
    assert other != texts
    assert identity(write(**other).mine) == first


@pytest.mark.parametrize(
    ("importing", "module"),
    [
        ("def mine():\n    import far\n    return far.FAR\n", "far"),
        ("def mine():\n    from far import FAR\n    return FAR\n", "far"),
        ("import importlib\ndef mine():\n    return importlib.import_module('far').FAR\n", "far"),
        ("from box import inner\ndef mine():\n    return inner.FAR\n", "box__inner"),
        ("import box.inner\ndef mine():\n    return box.inner.FAR\n", "box__inner"),
        ("from box.middle import FAR\ndef mine():\n    return FAR\n", "box__inner"),
    ],
)
def test_imports_in_every_form(write, importing, module):
    """Also of packages without __init__.py, relative, and of modules that are not loaded yet."""
    others = {"box__middle": "from . import inner\nfrom .inner import FAR\n"}
    first, second = (
        identity(write(method=importing, **others | {module: f"FAR = {value}\n"}).mine) for value in (1, 2)
    )
    assert first["code"] != second["code"]


def test_a_reload_counts_and_an_edit_without_one_does_not(write, tmp_path):
    texts = {"method": METHOD, "helper": HELPER, "far": "FAR = 2\n"}
    module = write(**texts)
    first = identity(module.mine)
    (tmp_path / "helper.py").write_text(HELPER.replace("*", "+"))
    assert identity(module.mine) == first  # what runs is what was imported
    importlib.reload(sys.modules["helper"])
    assert identity(module.mine) != first


def test_a_file_edited_between_import_and_first_use_cannot_be_told(write, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    module = write(method="def mine():\n    return 1\n")
    (tmp_path / "method.py").write_text("def mine():\n    return -1\n")
    found = identity(module.mine)
    assert found["code"] is None
    assert "edited after it was imported" in found["unseen"]["method"]
    assert identity(importlib.reload(module).mine)["code"] is not None


def test_bytecode_without_its_source_counts_by_its_content(write, tmp_path):
    found = []
    for value in (1, 2):
        (tmp_path / "source.txt").write_text(f"def mine():\n    return {value}\n")
        py_compile.compile(str(tmp_path / "source.txt"), str(tmp_path / "compiled.pyc"))
        found.append(identity(write(method="from compiled import mine\n").mine))
    assert found[0]["name"] == "compiled:mine"
    assert found[0]["code"] not in (None, found[1]["code"])


def installed(folder, version, text):
    """A package as pip leaves it."""
    place = folder / "site-packages"
    (place / "pack").mkdir(parents=True, exist_ok=True)
    (place / "pack/__init__.py").write_text(text)
    for old in place.glob("*.dist-info/*"):
        old.unlink()
        old.parent.rmdir()
    (place / f"pack-{version}.dist-info").mkdir()
    (place / f"pack-{version}.dist-info/METADATA").write_text(f"Name: pack\nVersion: {version}\n")
    version_of.cache_clear()
    return place


def test_an_installed_package_counts_by_its_version(write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(installed(tmp_path, "1.0", "def mine():\n    return 1\n"))
    using = {"method": "import pack\ndef mine():\n    return pack.mine()\n"}
    direct = {"method": "from pack import mine\n"}
    first = [identity(write(**texts).mine) for texts in (using, direct)]
    assert [each["packages"] for each in first] == [{"pack": "1.0"}] * 2
    assert "code" in first[0]
    assert "code" not in first[1]
    installed(tmp_path, "1.0", "def mine():\n    return 2\n")
    assert [identity(write(**texts).mine) for texts in (using, direct)] == first
    installed(tmp_path, "2.0", "def mine():\n    return 2\n")
    second = [identity(write(**texts).mine) for texts in (using, direct)]
    assert [each["packages"] for each in second] == [{"pack": "2.0"}] * 2
    assert second[0]["code"] == first[0]["code"]


def test_what_is_fpas_torchs_or_numpys_has_no_identity():
    for value in (
        fpa.explain,
        torch.relu,
        np.mean,
        nn.Linear(2, 2).forward,
        fpa.masking.Blur(2.0),
        json.dumps,
    ):
        assert identity(value) is None


def scaled(k, *, power=1):
    def inner(model, images, targets, offset=0, *, last=0):
        return k * images**power + offset + last

    return inner


class Scaled:
    def __init__(self, **values):
        self.__dict__.update(values)

    def __call__(self, model, images, targets):
        return self.k * images

    def method(self, model, images, targets):
        return self.k * images


def with_defaults(k):
    def function(model, images, targets, a=k, *, b=k):
        return a * b * images

    return function


def marked(function, k):
    @functools.wraps(function)
    def wrapper(*arguments):
        return k * function(*arguments)

    return wrapper


def tagged(k):
    def function(model, images, targets):
        return function.k * images

    function.k = k
    return function


@dataclass(frozen=True)
class Frozen:
    k: float
    note: str = field(default="", compare=False)

    def __call__(self, images, mask):
        return self.k * images


def layers(k):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout(k / 10))
    with torch.no_grad():
        net[1].weight[0, 0] = k
    return net


def one_of_several(k):
    net = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
    return Scaled(layer=net[k], net=net)


VALUES = {
    "closure": scaled,
    "closure of a keyword": lambda k: scaled(1, power=k),
    "defaults": with_defaults,
    "partial": lambda k: functools.partial(scaled(1), offset=k),
    "partial, by place": lambda k: functools.partial(scaled(1), k),
    "attribute": lambda k: Scaled(k=k),
    "private attribute": lambda k: Scaled(_k=k),
    "bound method": lambda k: Scaled(k=k).method,
    "function attribute": tagged,
    "decorated": lambda k: marked(scaled(1), k),
    "inside a decorated one": lambda k: marked(scaled(k), 1),
    "without gradients": lambda k: torch.no_grad()(scaled(k)),
    "cached": lambda k: functools.lru_cache(scaled(k)),
    "dataclass": Frozen,
    "list": lambda k: Scaled(k=[1, (2, {"a": k})]),
    "set": lambda k: Scaled(k={1, "a", (k, 5)}),
    "bytes": lambda k: Scaled(k=b"a" * k),
    "array": lambda k: Scaled(k=np.arange(1000.0) * k),
    "array of objects": lambda k: Scaled(k=np.array([k, "a"], dtype=object)),
    "tensor": lambda k: Scaled(k=torch.arange(3.0) * k),
    "bfloat16": lambda k: Scaled(k=(torch.arange(3.0) * k).bfloat16()),
    "a scalar of NumPy": lambda k: Scaled(k=np.int64(k)),
    "object in an object": lambda k: Scaled(k=Scaled(k=k)),
    "object of Python's": lambda k: Scaled(k=SimpleNamespace(k=k)),
    "network": lambda k: Scaled(net=layers(k)),
    "network in a closure": lambda k: scaled(layers(k)),
    "network of other settings": lambda k: Scaled(net=nn.MaxPool2d(k)),
    "one of several layers": one_of_several,
    "a masking of fpa's": lambda k: Scaled(k=fpa.masking.Blur(float(k))),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_count(kind):
    made = VALUES[kind]
    assert identity(made(2)) == identity(made(2))
    assert identity(made(1)) != identity(made(2))
    assert identity(made(1))["code"] == identity(made(2))["code"]
    assert json.loads(json.dumps(identity(made(1)))) == identity(made(1))
    assert len(json.dumps(identity(made(1)))) < 1000


def test_numbers_of_numpy_are_numbers_like_any_other():
    for number in (np.int64(3), np.array(3), torch.tensor(3)):
        assert as_json(number) == as_json(3) == 3
    assert as_json(np.float64(0.5)) == as_json(torch.tensor(0.5)) == 0.5
    assert as_json(np.bool_(True)) is True
    assert as_json([np.int32(1), np.float32("nan")]) == [1, "nan"]
    assert as_json(np.ones(1)) != 1
    assert identity(Scaled(k=np.int64(3))) == identity(Scaled(k=3))


class Careful:
    """Keeps what must not count beside what does."""

    def __init__(self, k, seed):
        self.k = k
        self.generator = torch.Generator().manual_seed(seed)
        self.other = np.random.default_rng(seed)
        self.third = random.Random(seed)
        self.remembered = functools.lru_cache(scaled)
        self.place = torch.device("cpu")

    @functools.cached_property
    def table(self):
        return self.third.random()

    def __call__(self, model, images, targets):
        return self.k * images * self.table


def test_generators_and_caches_do_not_count():
    first = Careful(3, seed=0)
    second = Careful(3, seed=1)
    expected = identity(first)
    assert identity(second) == expected
    assert second.table
    assert second.other.random()
    assert second.remembered(5)
    assert identity(second) == expected
    assert identity(Frozen(1, "a")) == identity(Frozen(1, "b"))


def test_the_order_of_a_set_does_not_count():
    words = [f"word {number}" for number in range(50)]
    first = dict.fromkeys(words)
    second = dict.fromkeys(sorted(words, reverse=True))
    assert identity(Scaled(k=first.keys())) == identity(Scaled(k=second.keys()))


def test_cycles_come_to_an_end():
    one, other = Scaled(k=1), Scaled(k=2)
    one.other, other.other = other, one
    several = [one]
    several.append(several)
    one.several = several
    changed = Scaled(k=1, other=Scaled(k=3), several=several)
    assert identity(one) == identity(one)
    assert identity(one) != identity(changed)
    nested = []
    for _ in range(5000):
        nested = [nested]
    assert "nested too deeply" in str(identity(Scaled(k=nested))["unseen"])


def test_what_cannot_be_described_counts_by_its_kind(tmp_path):
    with open(tmp_path / "a", "w") as file:
        assert identity(Scaled(k=file)) == identity(Scaled(k=file))
        assert identity(Scaled(k=file)) != identity(Scaled(k=3))


def test_lambdas_of_one_name_differ_by_their_code():
    first, second = (lambda m, x, t: x), (lambda m, x, t: -x)
    same = [lambda m, x, t: 2 * x for _ in range(2)]
    assert identity(first)["name"] == identity(second)["name"]
    assert identity(first) != identity(second)
    assert identity(same[0]) == identity(same[1])
    assert identity(Scaled(f=first, g=second)) != identity(Scaled(f=second, g=first))


class Spoken(Scaled):
    def identity(self):
        return self.said


def test_identity_overrides_everything():
    first = identity(Spoken(said={"version": [1, None]}, k=1))
    assert first == {"name": f"{__name__}:Spoken", "identity": {"version": [1, None]}}
    assert identity(Spoken(said={"version": [1, None]}, k=2)) == first
    assert identity(Spoken(said="2", k=1)) != first
    assert identity(Spoken(said=1).method) == {"name": f"{__name__}:Scaled.method", "identity": 1}


@pytest.mark.parametrize("said", [object(), float("nan"), {1: {2, 3}}])
def test_an_identity_that_is_no_json_is_refused(said):
    with pytest.raises(fpa.InputError, match=r"identity\(\) of .*:Spoken must return JSON"):
        identity(Spoken(said=said))
    with pytest.raises(fpa.InputError, match=r"identity\(\) of .*:Spoken must .*no attribute 'said'"):
        identity(Spoken())


class Described(Scaled):
    def described(self):
        return {"k": self.k}


def test_described_says_which_values_count():
    assert identity(Described(k=1, calls=5)) == identity(Described(k=1, calls=6))
    assert identity(Described(k=1)) != identity(Described(k=2))
    assert identity(Described(k=1))["code"]


def typed(text, filename, **known):
    """What a text defines that is run as a script or a cell."""
    namespace = {"__name__": "__main__", **known}
    exec(compile(text, filename, "exec"), namespace)
    return namespace


SCRIPT = """
import json
STRENGTH = 2
OTHER = 3
def helper(images): return STRENGTH * images
def unused(images): return images
class Base:
    side = 1
    def reduced(self, images): return helper(images)
class Mine(Base):
    def __call__(self, model, images, targets): return self.reduced(images)
mine = Mine()
def function(model, images, targets): return helper(images)
"""


@pytest.mark.parametrize("kind", ["script", "notebook"])
@pytest.mark.parametrize("name", ["mine", "function"])
def test_in_a_script_or_notebook_only_what_is_reached_counts(tmp_path, kind, name):
    number = iter(range(100))

    def made(text):
        if kind == "script":
            path = tmp_path / f"script{next(number)}.py"
            path.write_text(text)
            return identity(typed(text, str(path))[name])
        cell = f"<ipython-input-{next(number)}>"
        linecache.cache[cell] = (len(text), None, text.splitlines(keepends=True), cell)
        return identity(typed(text, cell)[name])

    first = made(SCRIPT)
    assert first["code"]
    for old, new in (
        ("OTHER = 3", "OTHER = 4"),
        ("return images", "return -images"),
        ("import json", "import sys"),
    ):
        assert made(SCRIPT.replace(old, new)) == first
    assert made(f"# a comment\n{SCRIPT}") == first
    for old, new in (("STRENGTH = 2", "STRENGTH = 3"), ("STRENGTH * images", "STRENGTH + images")):
        assert made(SCRIPT.replace(old, new)) != first
    inside = (("side = 1", "side = 2"), ("return self.reduced(images)", "return -self.reduced(images)"))
    for old, new in inside if name == "mine" else ():
        assert made(SCRIPT.replace(old, new)) != first


def test_a_script_reaches_modules_and_networks(write, tmp_path):
    path = tmp_path / "script.py"
    text = "def mine(model, images, targets):\n    return far.FAR * net(images)\n"
    path.write_text(text)
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    found = []
    for value in (1, 1, 2):
        far = write(far=f"FAR = {value}\n")
        found.append(identity(typed(text, str(path), far=far, net=net)["mine"]))
    assert found[0] == found[1]
    assert found[0]["code"] != found[2]["code"]
    with torch.no_grad():
        net.bias += 1
    assert identity(typed(text, str(path), far=far, net=net)["mine"])["globals"] != found[2]["globals"]


def test_what_was_typed_into_an_interpreter_cannot_be_told():
    for text in (
        "mine = lambda m, x, t: x",
        "def mine(m, x, t): return x",
        "class Mine:\n def f(s): pass\nmine = Mine()",
    ):
        found = identity(typed(text, "<stdin>")["mine"])
        assert found["code"] is None
        assert "its source is not to be found" in found["unseen"].values()
    assert identity(Scaled(k=typed("f = lambda: 1", "<string>")["f"]))["code"] is None


class Net(nn.Module):
    def __init__(self, scale=1.0, mean=0.0):
        super().__init__()
        self.scale = scale
        self.mean = torch.full((2,), mean)
        self.body = nn.Linear(2, 2)
        self.register_buffer("table", torch.full((2,), mean), persistent=False)

    def forward(self, images):
        self.calls = getattr(self, "calls", 0) + 1
        return self.kept(self.scale * self.body(images - self.mean))

    def kept(self, values):
        self.activations = values
        return values


def test_a_network_counts_by_its_classes_and_what_is_set_on_it():
    first = network_identity(Net())
    assert network_identity(Net()) == first  # its weights are another matter
    assert network_identity(Net(scale=2.0)) != first
    assert network_identity(Net(mean=1.0)) != first
    called = Net()
    called(torch.ones(3, 2))
    assert network_identity(called) == first
    assert network_identity(nn.Sequential(Net()))["code"] == first["code"]


def test_a_network_of_layers_has_no_identity_but_by_what_was_put_into_it():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert network_identity(net) is None
    net[0].forward = lambda images: images
    replaced = network_identity(net)
    assert replaced["code"]
    net[0].forward = lambda images: -images
    assert network_identity(net) != replaced
    other = nn.Sequential(nn.Linear(2, 2))
    other[0].register_forward_hook(lambda module, inputs, values: values)
    assert network_identity(other)["code"]


def test_the_forward_of_a_network_counts(write):
    text = (
        "from torch import nn\nclass Net(nn.Module):\n    def forward(self, images):\n        return images\n"
    )
    first = network_identity(write(net=text).Net())
    assert network_identity(write(net=text.replace("return images", "return -images")).Net()) != first
    assert network_identity(write(net=f"# a comment\n{text}").Net()) == first
