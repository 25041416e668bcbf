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
    "cell": ("#e3e8ee", "#2a313b"),
}


def _variables(side: int) -> str:
    return "".join(f"--{name}:{pair[side]};" for name, pair in COLOURS.items())


def style_sheet() -> str:
    """Give the whole style sheet."""
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}"
    light = f":root{{color-scheme:light dark;{_variables(0)}}}"
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
.n{text-align:right;font-variant-numeric:tabular-nums;overflow-wrap:normal}
td{min-width:5.5rem}td.n{min-width:0}
td.n+td:not(.n),th.n+th:not(.n){padding-left:1.5rem}
th:last-child,td:last-child{padding-right:0}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--accent);padding:.25rem 0}
figure{margin:1rem 0}figcaption{color:var(--soft);font-size:.875rem;margin:.25rem 0}
svg{display:block;width:100%}
.strip{display:grid;grid-template-columns:5.5rem 1fr 5rem;gap:.35rem .75rem;align-items:center;
 font-size:.9rem}
.strip svg{height:1.75rem}.axis{display:flex;justify-content:space-between;gap:1rem;
 font-size:.8125rem;color:var(--soft)}
.plot svg{height:9rem}.plot.low svg{height:4.5rem}
.legend span{margin-right:1.25rem;white-space:nowrap}
.key{display:inline-block;width:1.5rem;height:0;border-top:3px solid;vertical-align:middle;
 margin-right:.4rem}
.key.old{border-color:var(--old);border-top-style:dashed}.key.new{border-color:var(--new)}
.f-old{fill:var(--old)}.f-new{fill:var(--new)}.f-cell{fill:var(--cell)}
.s-old{stroke:var(--old);stroke-dasharray:5 3}.s-new{stroke:var(--new)}.s-line{stroke:var(--line)}
.s-old,.s-new{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}
.s-line{stroke-width:1;vector-effect:non-scaling-stroke}
.bar{min-width:6rem}.bar svg{height:1.1rem}
.flow{display:flex;align-items:stretch;gap:.5rem}
.box{flex:1 1 0;min-width:0;border:1px solid var(--line);border-radius:.5rem;background:var(--card);
 padding:.6rem .75rem;font-size:.875rem}
.box b{display:block;margin-bottom:.25rem}
.arrow{flex:0 0 2rem;align-self:center}.arrow svg{height:1.25rem}
.arrow path{fill:none;stroke:var(--soft);stroke-width:2}
"""

_NARROW = """
@media (max-width:60rem){.answers{grid-template-columns:1fr 1fr}}
@media (max-width:40rem){
 main,header,footer{padding-left:1rem;padding-right:1rem}
 h1{font-size:1.4rem}
 .answers{grid-template-columns:1fr;gap:.75rem}
 dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}
 thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
 table,tbody{display:block}
 tr{display:grid;grid-template-columns:1fr 1fr;gap:.1rem 1rem;padding:.5rem 0;
  border-bottom:1px solid var(--line)}
 td,tbody th{display:block;border:0;padding:0;text-align:left}
 td::before{content:attr(data-label);display:block;color:var(--soft);font-size:.8125rem}
 td.wide,tbody th{grid-column:1/-1}
 .n{text-align:left}td{min-width:0}.mark{white-space:normal}
 tr{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}
 td.n+td:not(.n){padding-left:0}
 .strip{grid-template-columns:4.5rem 1fr 3.5rem;gap:.35rem .5rem}
 .flow{flex-direction:column}.arrow{flex-basis:auto;width:2rem;transform:rotate(90deg);
  margin:.25rem 0}
}
"""

_PRINT = """
@page{size:A4;margin:14mm}
@media print{
 body{font-size:10pt}nav,.screen{display:none}
 main,header,footer{max-width:none;padding-left:0;padding-right:0}
 .answers{grid-template-columns:1fr 1fr}
 h2,h3{break-after:avoid}figure,.answer,tr,pre{break-inside:avoid}
 td{min-width:4.5rem}td:first-child{min-width:6.5em}
 details::details-content{content-visibility:visible;display:block;height:auto}
 .f-old,.f-new,.f-cell,.heat{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""
