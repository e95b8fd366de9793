// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/style.h"

namespace apogee::report {

const char* const kStyle = R"css(
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5b6675; --grid: #e3e7ec; --axis: #9aa5b1;
  --planned: #b9c4d0; --measured: #2b6cb0;
  --c0: #2b6cb0; --c1: #c05621; --c2: #2f855a; --c3: #97266d; --c4: #6b46c1; --c5: #b7791f;
  --c6: #0987a0; --c7: #c53030; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --card: #1b212a; --ink: #e4e9f0; --soft: #9aa7b6; --grid: #2b333e; --axis: #5d6978;
  --planned: #55616f; --measured: #63a4e8;
  --c0: #63a4e8; --c1: #f6955c; --c2: #5fc98f; --c3: #e97fc0; --c4: #a98bf0; --c5: #ecc158;
  --c6: #4fc3d9; --c7: #fc8181; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
header, main { max-width: 1208px; margin: 0 auto; padding: 0 16px; }
header { padding-top: 28px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 20px 0 8px; overflow-wrap: anywhere; }
nav a { color: var(--soft); margin-right: 16px; text-decoration: none; }
nav a:hover { color: var(--ink); text-decoration: underline; }
section { background: var(--card); border: 1px solid var(--grid); border-radius: 10px;
  padding: 20px 22px; margin: 18px 0; }
p { margin: 8px 0; }
.note { color: var(--soft); font-size: 13.5px; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); white-space: nowrap; }
th.number { text-align: right; }
th, td { padding: 5px 18px 5px 0; border-bottom: 1px solid var(--grid); vertical-align: middle; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
details { margin: 10px 0; }
summary { cursor: pointer; color: var(--soft); }
pre { overflow-x: auto; background: var(--page); border: 1px solid var(--grid); border-radius: 6px;
  padding: 10px 12px; font-size: 12.5px; line-height: 1.45; max-height: 420px; }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 0 24px; }
.legend .entry { margin-right: 20px; }
.name { white-space: nowrap; }
h3 .name { white-space: normal; }
.run { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 7px;
  background: var(--c); }
.run0 { --c: var(--c0); } .run1 { --c: var(--c1); } .run2 { --c: var(--c2); } .run3 { --c: var(--c3); }
.run4 { --c: var(--c4); } .run5 { --c: var(--c5); } .run6 { --c: var(--c6); } .run7 { --c: var(--c7); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 26px 24px; }
.chart { width: 100%; height: auto; display: block; overflow: visible; }
.chart.wide { grid-column: 1 / -1; }
svg text { fill: var(--ink); }
.chart-title { font-size: 14px; font-weight: 600; }
.chart .tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--grid); stroke-width: 1; }
.axis { stroke: var(--axis); stroke-width: 1; }
.line { fill: none; stroke: var(--c); stroke-width: 1.4; stroke-opacity: 0.85; stroke-linejoin: round; }
.line.again1 { stroke-dasharray: 7 3; } .line.again2 { stroke-dasharray: 2 2; }
.line.marked { stroke-dasharray: 4 4; stroke-width: 1.6; }
.mark { fill: var(--card); stroke: var(--c); stroke-width: 1.6; }
.event { fill: var(--c); }
.bars { width: 320px; height: auto; display: block; }
.planned { fill: var(--planned); } .measured { fill: var(--measured); }
.picture svg { display: block; }
.picture rect[fill="white"] { fill: var(--card); stroke: none; }
.picture rect[fill="#f4f4f4"] { fill: var(--page); }
.picture rect[fill="#e2e8f0"] { fill: var(--grid); }
.picture [stroke="black"] { stroke: var(--axis); }
.picture text[fill="white"] { fill: #ffffff; }
.cross { stroke: var(--axis); stroke-dasharray: 3 3; pointer-events: none; }
#tip { position: fixed; display: none; pointer-events: none; background: var(--card); color: var(--ink);
  border: 1px solid var(--axis); border-radius: 6px; padding: 6px 10px; font-size: 12.5px;
  box-shadow: 0 4px 14px rgba(0, 0, 0, 0.18); z-index: 1; max-width: 420px; }
@media print { section { break-inside: avoid; } body { background: none; } }
)css";

// Finds on each line the point nearest to the pointer, and computes its values from its pixels.
const char* const kScript = R"js(
'use strict';
const tip = document.getElementById('tip');
function nearest(line, x) {
  const points = line.points;
  let low = 0, high = points.numberOfItems - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points.getItem(middle).x < x) low = middle + 1; else high = middle;
  }
  const at = points.getItem(low);
  if (low === 0) return at;
  const before = points.getItem(low - 1);
  return x - before.x < at.x - x ? before : at;
}
function show(value) {
  return Number(value.toPrecision(5)).toString();
}
for (const chart of document.querySelectorAll('svg.chart')) {
  const d = {};
  for (const name in chart.dataset) d[name] = Number(chart.dataset[name]);
  const lines = Array.from(chart.querySelectorAll('polyline'));
  const cross = document.createElementNS(chart.namespaceURI, 'line');
  cross.setAttribute('class', 'cross');
  const leave = () => { tip.style.display = 'none'; cross.remove(); };
  chart.addEventListener('pointerleave', leave);
  chart.addEventListener('pointermove', (event) => {
    const matrix = chart.getScreenCTM().inverse();
    const x = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix).x;
    if (x < d.left - 5 || x > d.left + d.width + 5) return leave();
    const found = new Map();
    for (const line of lines) {
      const at = nearest(line, x), label = line.dataset.label, best = found.get(label);
      if (!best || Math.abs(at.x - x) < Math.abs(best.x - x)) found.set(label, at);
    }
    tip.replaceChildren();
    let step = null;
    for (const [label, at] of found) {
      const share = (d.top + d.height - at.y) / d.height;
      const y = d.log ? d.yBegin * Math.pow(d.yEnd / d.yBegin, share)
                      : d.yBegin + share * (d.yEnd - d.yBegin);
      const here = Math.round(d.xBegin + (at.x - d.left) / d.width * (d.xEnd - d.xBegin));
      const row = document.createElement('div');
      row.textContent = label + ': ' + show(y) + ' at step ' + here;
      tip.append(row);
      if (step === null || Math.abs(at.x - x) < Math.abs(step - x)) step = at.x;
    }
    for (const [name, value] of [['x1', step], ['x2', step], ['y1', d.top], ['y2', d.top + d.height]]) {
      cross.setAttribute(name, value);
    }
    chart.append(cross);
    tip.style.display = 'block';
    const right = event.clientX + 16 + tip.offsetWidth > window.innerWidth;
    tip.style.left = (right ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16) + 'px';
    tip.style.top = Math.min(event.clientY + 12, window.innerHeight - tip.offsetHeight - 8) + 'px';
  });
}
)js";

}  // namespace apogee::report
