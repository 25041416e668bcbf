"""The style sheet of the evidence page: one file, no fonts and no pictures from elsewhere.

Colours come from a palette that stays apart for colour-blind readers; each also has a word or a
symbol beside it. Texts keep a contrast of at least 4.5 in both modes.
"""

from __future__ import annotations

#: name -> (light, dark). `good`, `bad` and `warn` are text colours, the others also fill shapes.
COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14171c"),
    "card": ("#f4f6f8", "#1e232b"),
    "ink": ("#16191d", "#eceff3"),
    "soft": ("#4b5563", "#b4bdc9"),
    "line": ("#c9d0d8", "#3b444f"),
    "accent": ("#005a9c", "#7cc0f5"),
    "good": ("#00664c", "#56d3ad"),
    "bad": ("#a63c00", "#ff9a5c"),
    "warn": ("#6f5200", "#ecc94b"),
    "old": ("#b34700", "#ff9a5c"),
    "new": ("#005a9c", "#7cc0f5"),
    "cell": ("#edf0f4", "#232932"),
    # The ramp of the heat map: one hue, so that lightness alone carries the meaning.
    "h1": ("#b7d3ea", "#2b4f6e"),
    "h2": ("#86b4da", "#366f9c"),
    "h3": ("#4f90c4", "#4b92c8"),
    "h4": ("#1f6ba8", "#72b3e4"),
    "h5": ("#0a3f6e", "#b5dcfb"),
    # Grounds of the causes of changed rows; a letter stands on each.
    "k1": ("#bcd9f2", "#1f4d75"),
    "k2": ("#f6d9a6", "#6b4a12"),
    "k3": ("#f7c3ad", "#73351c"),
    "k4": ("#c3e6d6", "#1c5a45"),
    "k5": ("#e6c7dc", "#5d3352"),
    "k6": ("#f3eda8", "#5a5412"),
    "k7": ("#d5d9de", "#49525e"),
    "k8": ("#edf0f4", "#2b313a"),
}


def _css_variables(side: int) -> str:
    return "".join(f"--{name}:{pair[side]};" for name, pair in COLOURS.items())


def style_sheet() -> str:
    """Return the whole style sheet."""
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{_css_variables(1)}}}}}"
    light = f":root{{color-scheme:light dark;{_css_variables(0)}}}"
    return f"{light}\n{dark}\n{_BODY}{_PARTS}{_NARROW}{_PRINT}"


_BODY = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);overflow-wrap:anywhere;
 font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif}
main,header,footer{max-width:70rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:1.75rem}
footer{padding-bottom:3rem;color:var(--soft);font-size:.875rem}
h1{font-size:1.75rem;line-height:1.2;margin:.25rem 0 .5rem}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;padding-top:.75rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.5rem 0 .5rem}
p{margin:.5rem 0;max-width:50rem}
a{color:var(--accent)}
a:focus-visible,summary:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
code,pre{font:.875em/1.5 ui-monospace,"Liberation Mono",Menlo,Consolas,monospace}
pre{background:var(--card);border:1px solid var(--line);border-radius:.375rem;padding:.75rem 1rem;
 white-space:pre-wrap;margin:.5rem 0}
.soft{color:var(--soft)}.small{font-size:.875rem}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.mark{font-weight:600;white-space:nowrap}.big .mark{white-space:normal}
"""

_PARTS = """
.verdict{display:inline-block;padding:.2rem .75rem;border:2px solid;border-radius:999px;
 font-weight:650}
.answers{display:grid;grid-template-columns:repeat(4,1fr);gap:1rem;margin:1.25rem 0 0}
.answer{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.9rem 1rem;
 min-width:0}
.answer h2{font-size:.875rem;font-weight:600;color:var(--soft);margin:0 0 .25rem;padding:0;border:0}
.answer .big{font-size:1.2rem;font-weight:650;line-height:1.3;margin:0 0 .35rem}
.answer p{font-size:.9rem;margin:.2rem 0}
nav{margin:1rem 0 0;font-size:.9rem}nav a{margin-right:.9rem;white-space:nowrap;line-height:1.9}
dl{display:grid;grid-template-columns:minmax(8rem,14rem) minmax(0,1fr);gap:.3rem 1rem;
 margin:.5rem 0}
dt{color:var(--soft)}dd{margin:0;min-width:0}
table{border-collapse:collapse;width:100%;margin:.5rem 0;font-size:.9rem}
caption{text-align:left;color:var(--soft);padding:.25rem 0}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem .35rem 0;
 border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600;overflow-wrap:normal}
.word{overflow-wrap:normal}
.n{text-align:right;font-variant-numeric:tabular-nums;overflow-wrap:normal}
.long,.scale.n{overflow-wrap:anywhere}
td{min-width:5.5rem}td.n{min-width:0}
td.n+td:not(.n),th.n+th:not(.n){padding-left:1.5rem}
th:last-child,td:last-child{padding-right:0}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--accent);padding:.25rem 0}
figure{margin:1rem 0}figcaption{color:var(--soft);font-size:.875rem;margin:.25rem 0}
svg{display:block;width:100%}
.map{display:grid;grid-template-columns:minmax(6rem,11rem) minmax(0,1fr) auto;gap:.2rem .75rem;
 align-items:center;font-size:.875rem}
.map svg{height:1.5rem}.map .name{min-width:0}.map .kind{font-weight:600}
.ramp svg{display:inline-block;width:1rem;height:1.25rem;vertical-align:middle;margin-right:.35rem}
.ramp span{margin-right:1rem;white-space:nowrap}
.axis{display:flex;justify-content:space-between;gap:1rem;font-size:.8125rem;color:var(--soft)}
.chart{display:grid;grid-template-columns:fit-content(7rem) minmax(0,1fr);gap:.5rem .75rem}
.scale{min-width:3.5rem;display:flex;flex-direction:column;justify-content:space-between;font-size:.8125rem;
 line-height:1.1;color:var(--soft)}
.plot svg{height:7rem}.plot.low svg{height:4rem}
h4{font-size:.9375rem;margin:1rem 0 .25rem}
td .small{font-size:.97em}
.pair{display:inline-block;max-width:100%;margin-right:.9rem}
.legend span{margin-right:1.25rem;white-space:nowrap}
.key{display:inline-block;width:1.5rem;height:0;border-top:3px solid;vertical-align:middle;
 margin-right:.4rem}
.key.old{border-color:var(--old);border-top-style:dashed}.key.new{border-color:var(--new)}
.f-old{fill:var(--old)}.f-new{fill:var(--new)}.f-cell{fill:var(--cell)}
.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}.h4{fill:var(--h4)}.h5{fill:var(--h5)}
.s-old{stroke:var(--old);stroke-dasharray:5 3}.s-new{stroke:var(--new)}.s-line{stroke:var(--line)}
.s-old,.s-new{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}
.s-line{stroke-width:1;vector-effect:non-scaling-stroke}
.s-zero{stroke:var(--soft);stroke-width:1;vector-effect:non-scaling-stroke}
.stack{display:flex;height:1.5rem;min-width:0;gap:2px}
.stack span,.cause{color:var(--ink);text-align:center;overflow:hidden;font-weight:600}
.stack span{min-width:1ch}.cause{display:inline-block;width:1.5em;vertical-align:bottom}
.legend .cause{margin-right:.35rem}
.k1{background:var(--k1)}.k2{background:var(--k2)}.k3{background:var(--k3)}.k4{background:var(--k4)}.k5{background:var(--k5)}.k6{background:var(--k6)}.k7{background:var(--k7)}.k8{background:var(--k8)}
.lineage text{fill:var(--ink);font:13px ui-monospace,"Liberation Mono",Menlo,Consolas,monospace}
.lineage .title{font:600 13px system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,
 sans-serif;fill:var(--soft)}
.lineage .box{fill:var(--card);stroke:var(--line);stroke-width:1.5}
.lineage .shadow{stroke:var(--soft);stroke-dasharray:5 4}
.lineage .target{stroke:var(--accent);stroke-width:2.5}
.lineage path{fill:none;stroke:var(--soft);stroke-width:1.5}
.narrow-only{display:none;max-width:26rem}
"""

_NARROW = """
@media (max-width:60rem){.answers{grid-template-columns:1fr 1fr}}
@media (max-width:56rem){.wide-only{display:none}.narrow-only{display:block}}
@media (max-width:40rem){
 h1{font-size:1.4rem}
 .answers{grid-template-columns:1fr;gap:.75rem}
 dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}
 .map{grid-template-columns:4.75rem minmax(0,1fr) auto;gap:.2rem .5rem;font-size:.8125rem}
 .map code{font-size:.75rem}
 .ramp span{margin-right:.6rem}.map .axis span:nth-child(2):nth-last-child(2){display:none}
}
@media screen and (max-width:52rem){
 main,header,footer{padding-left:1rem;padding-right:1rem}
 thead{display:none}
 table,tbody{display:block}
 tr{display:block;padding:.5rem 0;border-bottom:1px solid var(--line)}
 td,td.n+td:not(.n){display:flex;justify-content:space-between;gap:1rem;min-width:0;border:0;
  padding:.1rem 0;text-align:right}
 td.wide,td.n+td.wide{display:block;text-align:left}
 td::before{content:attr(data-label);flex:none;color:var(--soft);font-size:.8125rem;text-align:left}
 td.wide::before{display:block}
 td:not(.n):first-child{display:block;font-weight:600;text-align:left}
 td:not(.n):first-child::before{display:none}
 .mark,.word{white-space:normal}
}
"""

_PRINT = """
@page{size:A4;margin:14mm}
@media print{
 body{font-size:10pt}nav,.screen{display:none}
 main,header,footer{max-width:none;padding-left:0;padding-right:0}
 .answers{grid-template-columns:1fr 1fr}
 h2,h3,h4,summary{break-after:avoid}figure,.answer,tr,pre{break-inside:avoid}
 table{font-size:8.5pt}td{min-width:0;padding-right:.4rem}td:not(.n):first-child{min-width:6.5em}
 pre{font-size:8pt}
 details::details-content{content-visibility:visible;display:block;height:auto}
 .heat *,.chart *,.ramp *,.causes *,.lineage *{
  print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""
