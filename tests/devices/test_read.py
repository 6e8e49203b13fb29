"""A user's own device file: what may be left out, and what is said when something is wrong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens.devices.catalogue
from tracelens.devices import Device, devices, read_device
from tracelens.devices.files import read_bundled
from tracelens.errors import TracelensError

SMALLEST = 'name = "Mine"\nhbm_bytes_per_s = 1e12\n[matrix]\nbf16 = 100e12\n'
TOP = 'name = "mine"\nhbm_bytes_per_s = 1e12\n'
PEAKS = "\n[vector]\nfp32 = 10e12\n"


def read(folder: Path, text: str) -> Device:
    file = folder / "mine.toml"
    file.write_text(text)
    return read_device(file)


def test_the_smallest_file(tmp_path: Path) -> None:
    device = read(tmp_path, SMALLEST)
    assert device == Device(
        name="mine",
        title="Mine",
        vendor="",
        aliases=(),
        units=0,
        hbm_bytes=0,
        hbm_bytes_per_s=1e12,
        cache_bytes=0,
        matrix={"bf16": 100e12},
        vector={},
        maf={},
        gpu_link_bytes_per_s=0.0,
        host_link_bytes_per_s=0.0,
        sources={},
    )
    assert device.peak("matrix", "bf16") == 100e12
    assert device.peak("matrix", "fp32") is None
    assert device.peak("vector", "bf16") is None


@pytest.mark.parametrize("item", devices(), ids=lambda item: item.name)
def test_a_bundled_file_can_be_copied(item: Device, tmp_path: Path) -> None:
    bundled = Path(tracelens.devices.catalogue.__file__).with_name(f"{item.name}.toml")
    assert read(tmp_path, bundled.read_text()) == item


def test_whole_numbers_and_their_spellings(tmp_path: Path) -> None:
    device = read(tmp_path, TOP + "units = 8\nhbm_bytes = 192e9\ncache_bytes = 268_435_456\n" + PEAKS)
    assert (device.units, device.hbm_bytes, device.cache_bytes) == (8, 192_000_000_000, 256 << 20)
    assert isinstance(device.hbm_bytes, int)


def test_sources_of_ones_own(tmp_path: Path) -> None:
    text = (
        TOP
        + PEAKS
        + (
            '[source]\nhbm_bytes_per_s = "lab"\n[source.vector]\nfp32 = "sheet"\n'
            '[sources.lab]\ntitle = "measured"\nsecondary = true\n'
            '[sources.sheet]\ntitle = "Sheet"\ndate = "2025"\nurl = "https://example.org"\n'
        )
    )
    assert read(tmp_path, text).sources == {
        "hbm_bytes_per_s": "measured (secondary source)",
        "vector.fp32": "Sheet, 2025, https://example.org",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hbm_bytes_per_s = 1e12" + PEAKS, "'name' is missing; add it"),
        ('name = "mine"' + PEAKS, "'hbm_bytes_per_s' is missing; add it"),
        (TOP, "no peak; add one to [matrix] or [vector], such as bf16 = 1307.4e12"),
        (TOP + "[matrix]\n[maf]\nbf16 = 1e12", "no peak"),
        (
            TOP + "hbm_bandwidth = 1e12" + PEAKS,
            "unknown key 'hbm_bandwidth'; known: aliases, cache_bytes, gpu_",
        ),
        (TOP + "hbm_byte_per_s = 1e12" + PEAKS, "did you mean 'hbm_bytes_per_s'?"),
        (TOP + "[matrx]\nbf16 = 1e12", "unknown key 'matrx'; did you mean 'matrix'?"),
        (TOP + "[matrix]\nint8 = 1e12", "unknown element type in [matrix]: 'int8'; did you mean 'i8'?"),
        (TOP + "[matrix]\nfloat = 1e12", "unknown element type in [matrix]: 'float'; known: bf16, fp16"),
        (TOP + "[matrix]\nfp8e4m3 = 1e12", "did you mean 'fp8'?"),
        (TOP + "[matrix]\nbf16 = -1e12", "matrix.bf16 is -1000000000000.0; it must be positive"),
        (TOP + "[matrix]\nbf16 = 0", "matrix.bf16 is 0; it must be positive"),
        (TOP + "[matrix]\nbf16 = nan", "matrix.bf16 is nan; it must be positive"),
        (TOP + "[matrix]\nbf16 = inf", "matrix.bf16 is inf; it must be positive"),
        (TOP + "[matrix]\nbf16 = 1307.4", "matrix.bf16 is 1307.4 FLOP/s: write 1307.4e12 for 1307.4 tera"),
        (TOP + '[matrix]\nbf16 = "1307.4e12"', "matrix.bf16 must be a number, without quotes"),
        (TOP + "[matrix]\nbf16 = true", "matrix.bf16 must be a number"),
        (TOP + "matrix = 1e12", "matrix must be a table: write [matrix]"),
        (TOP + "hbm_bytes = 192" + PEAKS, "hbm_bytes is 192 bytes: write"),
        (TOP + "gpu_link_bytes_per_s = 450" + PEAKS, "gpu_link_bytes_per_s is 450 bytes/s: write"),
        (TOP + "units = 1.5" + PEAKS, "units is 1.5; it must be a whole number"),
        (TOP + "units = 0" + PEAKS, "units is 0; it must be positive"),
        (TOP + "title = 1" + PEAKS, "title must be text in quotes"),
        ('name = " "\nhbm_bytes_per_s = 1e12' + PEAKS, "name must be text in quotes"),
        (TOP + 'aliases = "X1"' + PEAKS, 'aliases must be a list of texts, such as ["MI300X"]'),
        (TOP + "aliases = [1]" + PEAKS, "aliases must be a list"),
        (TOP + 'aliases = [""]' + PEAKS, "aliases must be a list"),
        (TOP + PEAKS + '[source]\nunits = "a"', "unknown number in [source]: 'units'"),
        (
            TOP + PEAKS + '[source.vector]\nfp32 = "a"',
            "the source 'a' of vector.fp32 has no [sources.a]; add it",
        ),
        (
            TOP + PEAKS + "[source.vector]\nfp32 = 1",
            "source.vector.fp32 must be the name of a source in quotes",
        ),
        (TOP + PEAKS + "[source.vector.fp32]\na = 1", "source.vector.fp32 must be the name of a source"),
        (TOP + PEAKS + '[sources]\na = "text"', "sources.a needs a title"),
        (TOP + PEAKS + '[sources.a]\nurl = "x"', "sources.a needs a title"),
        (TOP + PEAKS + "[sources.a]\ntitle = 1", "sources.a.title must be text in quotes"),
        (TOP + PEAKS + '[sources.a]\ntitle = "t"\nlink = "x"', "unknown key in [sources.a]: 'link'"),
        (
            TOP + PEAKS + '[sources.a]\ntitle = "t"\nsecondary = 1',
            "sources.a.secondary must be true or false",
        ),
        ("name = ", "not TOML: "),
        ("name = 1\nname = 2", "not TOML: "),
        ('{"name": "mine"}', "not TOML: "),
        ("", "'name' is missing"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TracelensError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'mine.toml'}: ")
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_beyond_all_measure(digits: int, tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match=r"mine\.toml"):
        read(tmp_path, TOP + f"[matrix]\nbf16 = 1{'0' * digits}")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match=r"nowhere\.toml: no such file$"):
        read_device(tmp_path / "nowhere.toml")


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match="cannot be read: Is a directory"):
        read_device(str(tmp_path))


def test_a_binary_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\x1f\x8b\xff\x00")
    with pytest.raises(TracelensError, match="not a text file"):
        read_device(tmp_path / "mine.toml")


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(TracelensError):
        read_device(f"{tmp_path}/a\0b.toml")


def test_deep_nesting(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match=r"mine\.toml"):
        read(tmp_path, TOP + "x = " + "[" * 100_000)


def test_a_bundled_file_without_all_sources_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SMALLEST)
    with pytest.raises(TracelensError, match=r"no source for hbm_bytes_per_s, matrix\.bf16; add it"):
        read_bundled(tmp_path / "mine.toml")


KEYS = st.sampled_from(
    ["name", "title", "aliases", "units", "hbm_bytes_per_s", "matrix", "source", "sources", "x"]
)
VALUES = st.one_of(
    st.sampled_from(["1e12", "-1", "0", "nan", "true", '"mi300x"', '["X"]', "[[1]]", "2025-01-01"]),
    st.sampled_from(["{bf16 = 1e12}", '{bf16 = "a"}', "{bf16 = {a = 1}}", '{a = {title = "t"}}', "{}"]),
)


@given(st.dictionaries(KEYS, VALUES))
def test_any_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, str]
) -> None:
    text = "".join(f"{key} = {value}\n" for key, value in entries.items())
    try:
        device = read(tmp_path_factory.mktemp("device"), text)
    except TracelensError:
        return
    assert device.hbm_bytes_per_s == 1e12
    assert device.matrix == {"bf16": 1e12}
