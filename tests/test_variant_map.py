"""The variant map: its layout and its text, exactly, and that a figure is drawn."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace

import pytest

from jitwatch.cli import main
from jitwatch.errors import UsageError
from jitwatch.events import Rung, VariantUse, Verdict
from jitwatch.render.json import render_json
from jitwatch.render.map_figure import write_figure
from jitwatch.render.variant_map import (
    NO_BARS,
    NO_USES,
    labels_of,
    lay_out,
    place,
    render_map,
    shortened,
    ticks,
)
from tests.samples import event, report, request, step, variant

LENGTHS = (16, 64, 256, 1024)


def use(spans, origin="in-repo", **changes):
    return VariantUse(variant(**changes), origin, spans)


def tiles():
    """A kernel whose second variant rules from 256 tokens on, the first one throughout."""
    narrow = use(((16, 1024),), constants={"BLOCK": "16"}, kernel="tile_kernel")
    wide = use(((256, 1024),), constants={"BLOCK": "64"}, kernel="tile_kernel")
    return narrow, wide


def mapped(*uses, late=(), rungs=(), device="sim:h200", lengths=LENGTHS):
    """A report of these uses; at the lengths `late` tile_kernel was loaded."""
    steps = [step(n, 10 * (i + 1)) for i, n in enumerate(lengths)]
    requests = [request(n, 10 * (i + 1)) for i, n in enumerate(lengths)]
    events = [
        event(
            9 + i,
            "load",
            10 * (lengths.index(n) + 1) + 1,
            kernel="tile_kernel",
            step=n,
            source="driver",
        )
        for i, n in enumerate(late)
    ]
    events = [replace(e, variant=replace(variant(), kernel="tile_kernel")) for e in events]
    made = report(events, steps=steps, requests=requests, device=device)
    ladder = tuple(Rung(n, ()) for n in rungs)
    return replace(made, uses=uses, ladder=ladder, verdict=Verdict("pass"), warm_variants=())


def test_a_variant_that_overlaps_another_has_a_lane_of_its_own():
    drawn = lay_out(mapped(*tiles()))
    assert [
        (lane.name, [(b.first, b.last, b.label) for b in lane.bars]) for lane in drawn.lanes
    ] == [
        ("tile_kernel", [(16, 1024, "BLOCK 16")]),
        ("", [(256, 1024, "BLOCK 64")]),
    ]
    assert [lane.labels for lane in drawn.lanes] == [(), ("BLOCK 16", "BLOCK 64")]


def test_variants_one_after_the_other_are_a_staircase():
    first = use(((16, 64),), constants={"BLOCK": "16"})
    second = use(((256, 1024),), constants={"BLOCK": "64"})
    lanes = lay_out(mapped(second, first)).lanes
    assert [
        (lane.name, [(bar.first, bar.last, bar.variant) for bar in lane.bars]) for lane in lanes
    ] == [("scale_kernel", [(16, 64, 0)]), ("", [(256, 1024, 1)])]


def test_a_long_name_keeps_its_number():
    assert shortened("tile_kernel", 11) == "tile_kernel"
    assert shortened("triton_red_fused_add_mean_mul_pow_12", 20) == "triton_red_…l_pow_12"


def test_kernels_with_one_variant_are_named_together():
    one, other = use(((16, 1024),), kernel="b"), use(((64, 64),), kernel="a")
    drawn = lay_out(mapped(one, other))
    assert (drawn.lanes, drawn.constant) == ((), ("a", "b"))


def test_a_kernel_with_one_variant_at_some_lengths_says_at_which():
    whole, part = use(((16, 1024),), kernel="b"), use(((64, 256),), kernel="a")
    assert lay_out(mapped(whole, part)).notes == ("of these, launched at 64..256 only: a",)
    apart = use(((16, 16), (256, 1024)), kernel="a")
    assert lay_out(mapped(apart)).notes == ("of these, launched at 16..1,024 in 2 spans only: a",)
    assert lay_out(mapped(whole)).notes == ()


def test_a_variant_that_was_loaded_again_is_one():
    again = [use((span,), kernel="a") for span in ((256, 1024), (16, 64))]
    other = use(((64, 64),), kernel="a", constants={"BLOCK": "16"})
    drawn = lay_out(mapped(*again))
    assert (drawn.lanes, drawn.constant, drawn.notes) == ((), ("a",), ())
    first, _ = lay_out(mapped(*again, other)).lanes
    assert [(bar.first, bar.last, bar.label) for bar in first.bars] == [(16, 1024, "BLOCK 256")]


def test_a_run_that_served_nothing_has_no_map():
    with pytest.raises(UsageError) as caught:
        lay_out(report(steps=[], requests=[], device="sim:h200"))
    assert str(caught.value) == (
        "the run on sim:h200 has no variant map\n"
        "  why: no request was served, so there is no length to draw\n"
        "  fix: `jitwatch report RUN` says what went wrong; mend that and sweep again"
    )


def test_other_peoples_kernels_are_left_out():
    drawn = lay_out(mapped(use(((16, 1024),), origin="fla")))
    assert (drawn.lanes, drawn.constant) == ((), ())


def test_a_late_kernel_comes_first_and_is_marked_where_requests_waited():
    others = [replace(u, variant=replace(u.variant, kernel="a_kernel")) for u in tiles()]
    drawn = lay_out(mapped(*tiles(), *others, late=(256,), rungs=(1, 64)))
    assert [lane.name for lane in drawn.lanes] == ["tile_kernel", "", "a_kernel", ""]
    assert [lane.late for lane in drawn.lanes] == [(), (256,), (), ()]
    assert drawn.rungs == (1, 64)


def test_variants_that_only_warmup_met_are_counted():
    made = mapped(*tiles())
    made = replace(made, warm_variants=(made.uses[0].variant, variant("i32 == 1")))
    assert lay_out(made).notes == ("no served length launched 1 variant that warmup loaded",)


def test_a_gpu_says_no_more_than_where_loads_were_late():
    drawn = lay_out(mapped(late=(256,), device="cuda"))
    [lane] = drawn.lanes
    assert (lane.name, lane.bars, lane.late) == ("tile_kernel", (), (256,))
    assert drawn.notes == (NO_BARS,)


def test_a_gpu_says_what_was_warm():
    warm = (variant("i32 == 1"), variant("i32"), variant(kernel="a_kernel"))
    drawn = lay_out(replace(mapped(device="cuda"), warm_variants=warm))
    told = "warm at ready: 3 variants of 2 kernels; more than one: scale_kernel 2"
    assert drawn.notes == (NO_BARS, told)


def test_a_label_names_what_tells_a_variant_from_the_others():
    made = [
        variant("i32", constants={"BLOCK": "16", "TYPE": "a"}),
        variant("i32 == 1", constants={"BLOCK": "16", "TYPE": "a"}, options={"num_warps": "8"}),
    ]
    assert labels_of(made) == ["n i32, num_warps not passed", "n i32 == 1, num_warps 8"]
    assert labels_of(made[:1]) == [""]


def test_the_axis_is_logarithmic():
    assert [place(n, 16, 1024) for n in (16, 128, 1024)] == [0, 0.5, 1]
    assert place(7, 7, 7) == 0
    assert ticks(11, 2560) == [11, 16, 32, 64, 128, 256, 512, 1024, 2560]
    assert ticks(7, 7) == [7]
    assert ticks(1, 262_143)[-3:] == [32_768, 65_536, 262_143]


def test_the_map_as_text():
    made = mapped(*tiles(), use(((16, 1024),), kernel="a"), late=(256,), rungs=(1, 64))
    made = replace(made, environment={"target": "engine"})
    assert render_map(made).split("\n") == [
        "engine: PASS on sim:h200, 4 lengths from 16 to 1,024",
        "",
        "prompt tokens           16       32       64        128      256      512  1,024",
        "warmup                  |                 |",
        "tile_kernel             aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "                                                             bbbbbbbbbbbbbbbbbbb",
        "  late                                                       !",
        "  a BLOCK 16; b BLOCK 64",
        "",
        "1 kernel with one variant each: a",
        "",
    ]


def test_many_variants_are_counted_not_lettered():
    many = [use(((n, n),), constants={"BLOCK": str(n)}) for n in range(16, 32)]
    text = render_map(mapped(*many, lengths=tuple(range(16, 32))))
    lane, counted = text.split("\n")[4:6]
    assert lane.startswith("scale_kernel            *")
    assert set(lane[24:]) <= {"*", " "}
    assert counted == "  16 variants: BLOCK 16, …"


def test_no_line_is_wider_than_a_terminal():
    names = [f"a_rather_long_name_of_a_kernel_number_{n}_kernel" for n in range(9)]
    long = [replace(u, variant=replace(u.variant, kernel=n)) for n in names for u in tiles()]
    text = render_map(mapped(*long, *(use(((16, 16),), kernel=f"{n}_one") for n in names)))
    assert max(map(len, text.split("\n"))) <= 80
    many = [use(((16, 16),), constants={"BLOCK": f"{n} " * 60}) for n in range(9)]
    assert max(map(len, render_map(mapped(*many)).split("\n"))) <= 80


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_a_figure_grows_with_its_lanes_and_is_the_same_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    made = mapped(*tiles(), late=(256,), rungs=(1, 64))
    write_figure(made, tmp_path / "one.png")
    write_figure(made, tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    width, height = png_size(tmp_path / "one.png")
    assert width == 1600
    kernels = [
        replace(u, variant=replace(u.variant, kernel=name)) for name in "abc" for u in tiles()
    ]
    write_figure(replace(made, uses=tuple(kernels)), tmp_path / "taller.png")
    assert png_size(tmp_path / "taller.png")[1] > height


def boxes_of(axes):
    """Left, width, top and height of each bar."""
    found = (path.get_extents() for drawn in axes.collections for path in drawn.get_paths())
    return [(box.x0, box.width, pytest.approx(box.y0), pytest.approx(box.height)) for box in found]


def test_what_is_drawn(tmp_path):
    figure_module = pytest.importorskip("matplotlib.figure")
    from jitwatch.render.map_figure import draw

    figure = figure_module.Figure()
    draw(figure, lay_out(mapped(*tiles(), late=(256,), rungs=(1, 64))))
    [axes] = figure.axes
    assert boxes_of(axes) == [(15.5, 1009, -0.35, 0.7), (255.5, 769, 0.65, 0.7)]
    [marks] = [line for line in axes.lines if line.get_marker() == "v"]
    assert list(marks.get_xdata()) == [256]
    assert [line.get_xdata()[0] for line in axes.lines if line is not marks] == [16, 64]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["tile_kernel", ""]
    texts = {text.get_text() for text in axes.texts}
    assert {"BLOCK 16", "BLOCK 64", "1", "64"} <= texts


def drawn_axes(made):
    figure_module = pytest.importorskip("matplotlib.figure")
    from jitwatch.render.map_figure import draw

    figure = figure_module.Figure()
    draw(figure, lay_out(made))
    return figure.axes[0]


def test_a_late_mark_is_on_the_variant_that_begins_there():
    axes = drawn_axes(mapped(*tiles(), late=(64, 256)))
    # At 256 the second lane's bar begins; at 64 none does, so the kernel's last lane has it.
    assert marks_of(axes) == [(64, 0.65), (256, 0.65)]
    assert marks_of(drawn_axes(mapped(*tiles(), late=(16,)))) == [(16, -0.35)]


def marks_of(axes):
    """Length and height of each late mark."""
    lines = [line for line in axes.lines if line.get_marker() == "v"]
    return [at for line in lines for at in zip(*line.get_data(), strict=True)]


def test_thousands_of_variants_are_one_color_and_late_marks_that_would_touch_a_band():
    lengths = (*range(16, 100), 200)
    many = [use(((n, n),), constants={"BLOCK": str(n)}, kernel="tile_kernel") for n in lengths]
    axes = drawn_axes(mapped(*many, late=(17, 40, 41, 42, 200), lengths=lengths))
    bars = [(15.5, 84, -0.35, 0.7), (199.5, 1, -0.35, 0.7)]
    assert boxes_of(axes) == [*bars, (39.5, 3, -0.42, 0.14)]
    assert [len(drawn.get_facecolor()) for drawn in axes.collections] == [1, 1]
    assert marks_of(axes) == [(17, -0.35), (40, -0.35), (200, -0.35)]
    assert [text.get_text() for text in axes.texts] == ["85 variants: BLOCK 16, …"]


def test_a_lone_bar_or_band_among_thousands_is_wide_enough_to_see():
    lengths = tuple(range(16, 2560))
    axes = drawn_axes(mapped(use(((2000, 2000),)), *tiles(), lengths=lengths, late=(2000, 2001)))
    assert {width > 0 for drawn in axes.collections for width in drawn.get_linewidth()} == {True}


def test_a_late_mark_without_a_bar_stands_beside_the_kernels_name():
    assert marks_of(drawn_axes(mapped(late=(16, 256), device="cuda"))) == [(16, 0), (256, 0)]


def test_nothing_late_and_no_bars_is_said_in_the_frame():
    [text] = drawn_axes(mapped(device="cuda")).texts
    assert text.get_text() == "no late load or autotune"


def label_of(*spans, text="16"):
    """Where the label of a kernel's first variant stands, its side, its color and its ground."""
    made = mapped(use(spans, constants={"B": text}), use(((1024, 1024),), constants={"B": "-"}))
    label = next(t for t in drawn_axes(made).texts if t.get_text() != "B -")
    ground = label.get_bbox_patch().get_facecolor()
    return label.xy[0], label.get_ha(), label.get_color() == "white", ground == (1, 1, 1, 1)


def test_a_label_stands_on_its_bar_or_beside_it_and_nothing_crosses_it():
    assert label_of((16, 1024)) == (16, "left", True, False)
    assert label_of((256, 270)) == (256, "right", False, True)
    # Left of the axis the kernels' names stand.
    assert label_of((16, 17)) == (17, "left", False, True)
    assert label_of((16, 17), (1024, 1024)) == (16, "left", False, True)
    # A bar too narrow for so long a label.
    assert label_of((16, 64), text="x" * 60) == (64, "left", False, True)


def test_a_label_is_cut():
    axes = drawn_axes(mapped(*(use(((16, 1024),), constants={"B": c * 90}) for c in "xy")))
    assert {len(text.get_text()) for text in axes.texts} == {60}


def test_rungs_near_each_other_share_a_label():
    axes = drawn_axes(mapped(*tiles(), rungs=(1, 8, 64, 66, 1024)))
    assert [text.get_text() for text in axes.texts if text.get_text()[0] != "B"] == [
        "1",
        "64",
        "1,024",
    ]


def test_a_rung_above_the_longest_length_is_a_note():
    layout = lay_out(mapped(*tiles(), rungs=(64, 4096)))
    assert (layout.rungs, layout.longest) == ((64,), 1024)
    assert layout.notes[0] == "warmup's rungs above 1,024: 4,096"
    assert lay_out(mapped(*tiles(), rungs=(1024, 64, 64))).rungs == (64, 1024)


def test_why_there_are_no_bars():
    assert lay_out(mapped()).notes == (NO_USES,)
    assert lay_out(replace(mapped(), device="cuda")).notes == (NO_BARS,)


def test_a_dollar_in_a_name_is_a_dollar(tmp_path):
    pytest.importorskip("matplotlib")
    odd = [use(((16, 1024),), kernel="$\\foo{$", constants={"BLOCK": b}) for b in ("1", "2")]
    write_figure(mapped(*odd), tmp_path / "odd.svg")
    assert (tmp_path / "odd.svg").stat().st_size > 1000


def test_a_matplotlibrc_changes_nothing(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    write_figure(mapped(*tiles()), tmp_path / "one.png")
    with matplotlib.rc_context({"axes.facecolor": "black", "lines.linewidth": 9}):
        write_figure(mapped(*tiles()), tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.fixture
def run(tmp_path):
    """The JSON of a report with a map."""
    path = tmp_path / "report.json"
    path.write_text(render_json([mapped(*tiles(), rungs=(1, 64))]))
    return path


def test_report_writes_the_figure_its_name_asks_for(run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    kinds = (("m.PNG", b"\x89PNG"), ("m.svg", b"<?xml"), ("m.pdf", b"%PDF"), ("m.TXT", b"PASS"))
    for name, start in kinds:
        assert main(["report", str(run), "--map", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(start)
        assert capsys.readouterr() == ("", f"variant map: {tmp_path / name}\n")


def test_report_prints_the_map(run, tmp_path, capsys):
    assert main(["report", str(run), "--map", "-"]) == 0
    printed = capsys.readouterr().out
    assert "tile_kernel             aaaa" in printed
    assert main(["report", str(run), "--map", str(tmp_path / "map.txt")]) == 0
    assert (tmp_path / "map.txt").read_text() == printed


def test_each_device_has_a_file(run, tmp_path):
    made = mapped(*tiles())
    run.write_text(render_json([made, replace(made, device="sim:l4")]))
    assert main(["report", str(run), "--map", str(tmp_path / "map.txt")]) == 0
    assert {path.name for path in tmp_path.glob("map*")} == {"map-sim-h200.txt", "map-sim-l4.txt"}


@pytest.mark.parametrize("name", ["-", "map.txt", "map.png"])
def test_a_run_that_served_nothing_writes_nothing(run, tmp_path, capsys, name):
    run.write_text(render_json([report(steps=[], requests=[], device="sim:h200")]))
    where = name if name == "-" else str(tmp_path / name)
    assert main(["report", str(run), "--map", where]) == 2
    out, said = capsys.readouterr()
    assert (out, said.split("\n")[0]) == ("", "jitwatch: the run on sim:h200 has no variant map")
    assert list(tmp_path.glob("map*")) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("map.jpeg", "--map {0}/map.jpeg: unknown ending"),
        ("map", "--map {0}/map: unknown ending"),
        ("nowhere/map.png", "--map {0}/nowhere/map.png: can't be written"),
    ],
)
def test_a_map_that_cant_be_written_says_why(run, tmp_path, capsys, name, text):
    assert main(["report", str(run), "--map", str(tmp_path / name)]) == 2
    assert text.format(tmp_path) in capsys.readouterr().err


def test_without_matplotlib_the_text_is_offered(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"matplotlib is missing") as caught:
        write_figure(mapped(*tiles()), tmp_path / "map.png")
    assert "pip install 'jitwatch[map]'" in str(caught.value)


def test_the_commands_import_no_matplotlib():
    program = "import sys, jitwatch.cli; print('matplotlib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
