//! The style of the page: light or dark according to the reader's preference, and a version for print.

use crate::report::Holds;

/// The whole style sheet. The page loads no other.
pub const CSS: &str = r#"
:root {
  color-scheme: light dark;
  --paper: #ffffff; --raised: #f6f8fa; --ink: #1f2328; --faint: #59636e; --grid: #d8dee4; --edge: #8c959f;
  --before: #57606a; --seed: #bc4c00; --after: #0550ae; --published: #1f2328;
  --other1: #1a7f37; --other2: #8250df; --other3: #bf3989; --other4: #9a6700;
  --good: #1a7f37; --middling: #9a6700; --bad: #cf222e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0d1117; --raised: #161b22; --ink: #e6edf3; --faint: #9198a1; --grid: #30363d; --edge: #6e7681;
    --before: #a7b0ba; --seed: #f0883e; --after: #58a6ff; --published: #e6edf3;
    --other1: #3fb950; --other2: #bc8cff; --other3: #f778ba; --other4: #d29922;
    --good: #3fb950; --middling: #d29922; --bad: #ff7b72;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif;
}
h1 { font-size: 2.2rem; line-height: 1.15; margin: 0 0 .3rem; letter-spacing: -.02em; }
h2 { font-size: 1.6rem; line-height: 1.2; margin: 3.5rem 0 .3rem; padding-top: 1.2rem;
    border-top: 2px solid var(--edge); }
h3 { font-size: 1.12rem; margin: 2rem 0 .6rem; }
p { margin: .5rem 0; max-width: 62rem; }
a { color: var(--after); }
.faint { color: var(--faint); }
.lead { font-size: 1.1rem; }
code { font: .88em ui-monospace, "SF Mono", "Liberation Mono", Menlo, monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .8rem 0; }
dt { color: var(--faint); }
dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; font-size: .95rem; }
th, td { text-align: right; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
tbody th { vertical-align: top; }
thead th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child, .words { text-align: left; }
td.words { min-width: 7rem; }
td small { color: var(--faint); display: block; white-space: nowrap; }
tbody th { font-weight: 400; min-width: 8rem; }
.arms { list-style: none; padding: 0; margin: .8rem 0; display: grid; gap: .3rem; }
.arms li { padding-left: .9rem; border-left: 5px solid currentColor; }
.arms span { color: var(--ink); }
.verdict { background: var(--raised); border-left: 6px solid var(--edge); padding: .7rem 1.1rem; margin: 1.2rem 0; }
.verdict h3 { margin: 0 0 .3rem; }
.verdict.yes { border-color: var(--good); } .verdict.partly { border-color: var(--middling); }
.verdict.no { border-color: var(--bad); }
.yes > b, td.yes { color: var(--good); } .partly > b, td.partly { color: var(--middling); }
.no > b, td.no { color: var(--bad); }
.notice { border: 1px solid var(--middling); border-left-width: 6px; padding: .5rem 1rem; margin: 1rem 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 1rem 1.5rem; }
figure { margin: .6rem 0; break-inside: avoid; overflow-x: auto; }
figcaption { color: var(--faint); font-size: .9rem; max-width: 62rem; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, "Liberation Sans", sans-serif; }
svg.wide { min-width: 48rem; }
svg text { fill: var(--ink); }
svg .tick, svg .legend { font-size: 12px; } svg .tick { fill: var(--faint); }
svg .tick, svg .title { text-anchor: middle; } svg .last { text-anchor: end; }
svg .title { font-size: 12.5px; } svg .value { font-size: 12px; } svg .label { font-size: 12.5px; }
.grid { stroke: var(--grid); } .axis { stroke: var(--edge); } .zero { stroke: var(--edge); stroke-width: 1.4; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.dashed { stroke-dasharray: 7 5; }
.whisker { stroke: currentColor; stroke-width: 1.6; opacity: .65; } .whisker.over { stroke: var(--ink); opacity: .8; }
.mark { fill: currentColor; stroke: var(--paper); stroke-width: 1; }
.mark .hollow { fill: var(--paper); stroke: currentColor; stroke-width: 2; }
.bar { fill: currentColor; } .shade { fill: currentColor; opacity: .13; }
.before { color: var(--before); } .seed { color: var(--seed); } .after { color: var(--after); }
.published { color: var(--published); }
.other1 { color: var(--other1); } .other2 { color: var(--other2); } .other3 { color: var(--other3); }
.other4 { color: var(--other4); }
.checks { padding-left: 1.2rem; } .checks .no { color: var(--bad); font-weight: 600; }
.checks i { color: var(--faint); font-style: normal; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--faint); }
@media print {
  :root {
    color-scheme: light;
    --paper: #ffffff; --raised: #f6f8fa; --ink: #1f2328; --faint: #59636e; --grid: #d8dee4; --edge: #8c959f;
    --before: #57606a; --seed: #bc4c00; --after: #0550ae; --published: #1f2328;
    --other1: #1a7f37; --other2: #8250df; --other3: #bf3989; --other4: #9a6700;
    --good: #1a7f37; --middling: #9a6700; --bad: #cf222e;
  }
  @page { size: A4; margin: 14mm; }
  body { font-size: 10.5pt; padding: 0; max-width: none; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h1 { font-size: 20pt; } h2 { break-before: page; font-size: 16pt; margin-top: 0; border: 0; padding: 0; }
  h2, h3 { break-after: avoid; } tr, .verdict, .notice { break-inside: avoid; }
  .plots { grid-template-columns: 1fr 1fr; gap: .5rem 1rem; }
  .scroll, figure { overflow: visible; } svg.wide { min-width: 0; }
  table { font-size: 8.5pt; } th { white-space: normal; }
  td small { white-space: normal; }
  a { color: inherit; text-decoration: none; }
  details::details-content { content-visibility: visible; block-size: auto; }
  details code { font-size: 7pt; }
}
"#;

/// Returns the CSS class that colours a verdict.
pub fn class_of(holds: Holds) -> &'static str {
    match holds {
        Holds::Yes => "yes",
        Holds::Partly => "partly",
        Holds::No => "no",
        Holds::CannotTell | Holds::DoesNotRepeat => "unknown",
    }
}
