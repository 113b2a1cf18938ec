// Draws the plots and the folded tables of the page from the arrays beside it, and loads nothing.
//
// html.rs strips comments, and the blanks before each line, so that no string here may span lines. All words from the
// arrays pass through `safe` before they become part of the page.

const safe = words => String(words).replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);

// Formatting of figures, the same as in the tables of the terminal (table.rs).

const figure = (value, points) => {
  if (!Number.isFinite(value)) return '-';
  const scales = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
  const [scale, letter] = scales.find(([scale]) => Math.abs(value) >= scale * 0.9995) || [1, ''];
  const scaled = value / scale, size = Math.abs(scaled);
  return scaled.toFixed(size === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2) + letter + (points ? ' %' : '');
};

const plus = text => (text.startsWith('-') ? text : '+' + text);
const signed = (percent, points) =>
  plus(percent.toFixed(Math.abs(percent) < 99.95 ? 1 : 0)) + (points ? ' points' : ' %');

const end = percent => {
  const size = Math.abs(percent);
  return size < 99.95 ? percent.toFixed(1) : size < 1e6 ? percent.toFixed(0) : percent.toExponential(0).replace('+', '');
};

const told = ([percent, low, high], points) =>
  Number.isFinite(low) ? `${signed(percent, points)} [${end(low)}, ${end(high)}]` : 'not measurable';

const time = ns => {
  const [scale, unit] = ns < 1e3 ? [1, 'ns'] : ns < 1e6 ? [1e3, 'µs'] : ns < 1e9 ? [1e6, 'ms'] : [1e9, 's'];
  return `${Number((ns / scale).toFixed(2))} ${unit}`;
};

// Axes: functions from a value to its relative place on the axis, 0 to 1.

const even = (low, high) => value => (value - low) / (high - low);
// A logarithmic axis. If some values are 0, these have a place of their own before the first.
const log = (low, high, zero) => value => {
  if (zero && value <= 0) return 0;
  const share = high > low ? Math.log(value / low) / Math.log(high / low) : 0.5;
  return zero ? 0.12 + share * 0.88 : share;
};
// Places side by side.
const slots = count => value => (value + 0.5) / count;

const roundTicks = (low, high, count) => {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(nice => nice * power).find(step => step >= rough * 0.999) || 10 * power;
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at <= Math.floor(high / step + 1e-9); at++) ticks.push(at * step);
  return ticks;
};

// Returns the ends and the ticks of an axis that contains all values and 0, and ends on a round value.
const fromZero = values => {
  const low = Math.min(0, ...values), most = Math.max(0, ...values), high = most === low ? low + 1 : most;
  const ticks = roundTicks(low, high, 5), step = ticks.length > 1 ? ticks[1] - ticks[0] : high - low;
  const from = Math.floor(low / step + 1e-9) * step, to = Math.ceil(high / step - 1e-9) * step;
  return [from, to, roundTicks(from, to, Math.round((to - from) / step))];
};

// Ticks at powers of ten, and also at 2 and 5 times those if there would be few.
const logTicks = (low, high) => {
  const digits = Math.log10(high / low) <= 2 ? [1, 2, 5] : [1], ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    ticks.push(...digits.map(digit => digit * 10 ** power));
  return ticks.filter(tick => tick >= low * 0.999 && tick <= high * 1.001);
};

// Elements.

const place = value => Number(value.toFixed(1));
const line = (look, x, y, to, down) =>
  `<line class="${look}" x1="${place(x)}" y1="${place(y)}" x2="${place(to)}" y2="${place(down)}"/>`;
const label = (look, x, y, words) => `<text class="${look}" x="${place(x)}" y="${place(y)}">${safe(words)}</text>`;
const path = points => 'M' + points.map(([x, y]) => `${place(x)} ${place(y)}`).join('L');
const SHAPES = [
  '<circle r="4"/>',
  '<path d="M-3.7-3.7h7.4v7.4h-7.4z"/>',
  '<path d="M0-4.8 4.6 3.6-4.6 3.6z"/>',
  '<path d="M0-5.4 5.4 0 0 5.4-5.4 0z"/>',
  '<path class="hollow" d="M-4-4 4 4M-4 4 4-4"/>',
  '<circle class="hollow" r="4"/>',
];
const CROSS = 4, RING = 5;
const mark = ([, look, shape], x, y, says) =>
  `<g class="mark ${look}" transform="translate(${place(x)} ${place(y)})">${SHAPES[shape]}<title>${safe(says)}</title></g>`;
const svg = (width, height, says, body, look = '') =>
  `<svg class="${look}" viewBox="0 0 ${width} ${height}" role="img" aria-label="${safe(says)}">${body.join('')}</svg>`;
const captioned = (drawn, words) => `<figure>${drawn}<figcaption>${words}</figcaption></figure>`;

// Estimates the width of a text, and breaks a text into lines of at most `room`.
const LETTER = 6.6;
const width = words => words.length * LETTER;
const broken = (words, room) => {
  const lines = [];
  for (const word of words.split(' ')) {
    const last = lines[lines.length - 1];
    if (last !== undefined && width(`${last} ${word}`) <= room) lines[lines.length - 1] += ` ${word}`;
    else lines.push(word);
  }
  return lines;
};

// Places the names of arms from left to right, in as many rows as they need: [look, x, row].
const legend = (looks, left, right, sign) => {
  let from = left, row = 0;
  return looks.map(look => {
    const wide = sign + width(look[0]);
    if (from > left && from + wide > right) [from, row] = [left, row + 1];
    const at = [look, from, row];
    from += wide + 18;
    return at;
  });
};

// A plot with its axes. Above it there is room for two rows of a legend.
const WIDTH = 560, HEIGHT = 354, LEFT = 72, RIGHT = 16, TOP = 48, FLOOR = HEIGHT - 56;
const frame = (across, up) => {
  const body = [];
  const x = value => LEFT + across(value) * (WIDTH - LEFT - RIGHT), y = value => FLOOR - up(value) * (FLOOR - TOP);
  return {
    body, x, y,
    at: (value, height) => [x(value), y(height)],
    left(ticks, words) {
      for (const tick of ticks) {
        body.push(line(tick === 0 ? 'zero' : 'grid', LEFT, y(tick), WIDTH - RIGHT, y(tick)));
        body.push(label('tick last', LEFT - 7, y(tick) + 4, words(tick)));
      }
    },
    below(ticks, slot) {
      body.push(line('axis', LEFT, FLOOR, WIDTH - RIGHT, FLOOR));
      const room = slot || (WIDTH - LEFT - RIGHT) / Math.max(ticks.length, 1);
      // Every second or third label only, if labels would overlap.
      const widest = Math.max(0, ...ticks.flatMap(([, words]) => broken(words, room)).map(width));
      const every = slot ? 1 : Math.max(1, Math.ceil(widest / room));
      ticks.filter((_, at) => at % every === 0).forEach(([value, words]) => {
        body.push(line('axis', x(value), FLOOR, x(value), FLOOR + 4));
        broken(words, room).forEach((part, at) => body.push(label('tick', x(value), FLOOR + 17 + 13 * at, part)));
      });
    },
    titles(below, left) {
      body.push(label('title', (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, below));
      body.push(`<text class="title" transform="translate(14 ${(TOP + FLOOR) / 2}) rotate(-90)">${safe(left)}</text>`);
    },
    legend(looks, dashes) {
      const sign = dashes ? 28 : 16;
      for (const [look, from, row] of legend(looks, dashes ? 0 : LEFT, WIDTH, sign)) {
        const y = 12 + 16 * row;
        body.push(dashes ? line(`line dashed ${look[1]}`, from, y, from + 22, y) : mark(look, from + 6, y, look[0]));
        body.push(label('legend', from + sign, y + 4, look[0]));
      }
    },
    finish: says => svg(WIDTH, HEIGHT, says, body),
  };
};

// Changes one below the other: the published one, ours with their intervals, and those in instructions. A dot is
// [arm or -1 for published, whether in instructions, change, low, high].
const ratio = percent => 1 + percent / 100;
const MARKED = [-90, -80, -50, -25, 0, 25, 50, 100, 200, 500, 1000, 2000, 5000];
const scaleOf = dots => {
  const largest = Math.max(1, ...dots.map(([, , change]) => Math.abs(change)));
  // A wide interval of few noisy rounds is clamped, so that the other changes remain distinguishable.
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const ends = dots.flatMap(([, , change, low, high]) => (Number.isFinite(low) ? [low, high] : [change]));
  const near = ends.map(value => clamp(value, -2 * largest, 2 * largest));
  if (largest <= 60) {
    const [low, high, ticks] = fromZero(near);
    return [value => even(low, high)(clamp(value, low, high)), ticks];
  }
  // Small changes beside large ones: the axis is the logarithm of the ratio.
  const low = Math.max(-90, Math.min(0, ...near)), high = Math.min(5000, Math.max(0, ...near));
  const from = MARKED.filter(tick => tick <= low).pop(), to = MARKED.find(tick => tick >= high);
  const share = log(ratio(from), ratio(to));
  return [value => share(ratio(clamp(value, from, to))), MARKED.filter(tick => tick >= from && tick <= to)];
};

const changes = ([, arms], says, points, rows) => {
  const dots = rows.flatMap(([, dots]) => dots);
  if (!dots.length) return '';
  const lookOf = ([arm, counted]) => {
    if (arm < 0) return ['published', 'published', 3];
    const [name, look, shape] = arms[arm];
    return counted ? [`${name} (instructions)`, look, CROSS] : [name, look, shape];
  };
  const wide = 1140, rowHeight = dots => Math.max(dots.length, 1) * 16 + 12;
  // Labels end at the left edge of the plot. 1.1: a label wider than estimated would lose its first letter.
  const left = Math.max(60, ...rows.map(([words]) => width(words) * 1.1)) + 16, right = wide - 130;
  const seen = new Map(dots.map(dot => [lookOf(dot)[0], lookOf(dot)]));
  const names = legend([...seen.values()], left, wide, 16), upper = 34 + 16 * names[names.length - 1][2];
  const bottom = upper + rows.reduce((sum, [, dots]) => sum + rowHeight(dots), 0);
  const [share, ticks] = scaleOf(dots), x = value => left + share(value) * (right - left), body = [];
  let last = -Infinity;
  for (const tick of ticks) {
    // The tick at zero is always drawn, others only where they have room.
    if (tick !== 0 && (x(tick) - last < 42 || (tick < 0 && x(0) - x(tick) < 42))) continue;
    last = x(tick);
    body.push(line(tick === 0 ? 'zero' : 'grid', last, upper - 4, last, bottom));
    body.push(label('tick', last, bottom + 16, tick === 0 ? '0' : plus(tick.toFixed(0))));
  }
  body.push(label('title', (left + right) / 2, bottom + 36, `change against before (${points ? 'points' : '%'})`));
  for (const [look, from, row] of names)
    body.push(mark(look, from + 6, 12 + 16 * row, look[0]), label('legend', from + 16, 16 + 16 * row, look[0]));
  let top = upper;
  for (const [words, dots] of rows) {
    const next = top + rowHeight(dots);
    body.push(label('label last', left - 12, (top + next) / 2 + 2, words), line('grid', left, next, right, next));
    dots.forEach((dot, at) => {
      const [, , change, low, high] = dot, look = lookOf(dot), y = top + 6 + (at + 0.5) * 16;
      const whisker = Number.isFinite(low);
      if (whisker) body.push(line(`whisker ${look[1]}`, x(low), y, x(high), y));
      body.push(mark(look, x(change), y, `${look[0]}, ${words}: ${signed(change, points)}`));
      const beside = Math.max(x(change), whisker ? x(high) : 0) + 10;
      body.push(label('value', beside, y + 4, signed(change, points)));
    });
    top = next;
  }
  return svg(wide, place(bottom + 44), says, body, 'wide');
};

// The distribution of latencies: [arm, the first bucket, I/Os in ten thousand of each bucket from there on], with
// twelve
// buckets per doubling.
const latencies = ([, arms], words, spreads) => {
  const bucket = at => 2 ** (at / 12);
  const low = bucket(Math.min(...spreads.map(([, first]) => first)) - 4);
  const high = bucket(Math.max(...spreads.map(([, first, shares]) => first + shares.length)) + 4);
  const [, top, ticks] = fromZero(spreads.flatMap(([, , shares]) => shares.map(share => share / 100)));
  const plot = frame(log(low, high), even(0, top));
  plot.left(ticks, tick => `${tick.toFixed(0)} %`);
  plot.below(logTicks(low, high).map(tick => [tick, time(tick)]));
  plot.titles('latency of an I/O (12 buckets each doubling)', 'share of the I/Os in a bucket');
  plot.legend(spreads.map(([arm]) => [arms[arm][0], arms[arm][1], 1]));
  for (const [arm, first, shares] of spreads) {
    const steps = shares.flatMap((share, at) => [0, 1].map(more => plot.at(bucket(first + at + more), share / 100)));
    const outline = [plot.at(low, 0), plot.at(bucket(first), 0), ...steps, plot.at(bucket(first + shares.length), 0)];
    const [, look] = arms[arm];
    plot.body.push(`<path class="shade ${look}" d="${path(outline)}"/><path class="line ${look}" d="${path(outline)}"/>`);
  }
  return plot.finish(`Latencies of each arm, ${words}`);
};

// Lines with marks, or bars if places have no order. `value` returns a figure and the ends of its whisker.
const series = (plot, arms, rows, bars, slot, value, says) => {
  plot.below(rows.map(([words, x], at) => [bars ? at : x, words]), slot);
  const used = arms.map((_, arm) => arm).filter(arm => rows.some(([, , , cells]) => cells[arm] && value(cells[arm])));
  plot.legend(used.map(arm => (bars ? [arms[arm][0], arms[arm][1], 1] : arms[arm])));
  used.forEach((arm, nth) => {
    const look = arms[arm], wide = (slot * 0.8) / used.length;
    // Whiskers of arms at the same place are drawn side by side.
    const aside = bars ? (nth + 0.5) * wide - slot * 0.4 : (nth - (used.length - 1) / 2) * 3;
    const found = rows.flatMap(([words, x, , cells], at) => {
      const given = cells[arm] && value(cells[arm]);
      if (!given) return [];
      const [middle, low, high] = given.map(plot.y);
      return [[plot.x(bars ? at : x) + aside, middle, low, high, `${look[0]}, ${words}: ${says(cells[arm])}`]];
    });
    if (!bars && found.length) plot.body.push(`<path class="line ${look[1]}" d="${path(found)}"/>`);
    for (const [x, y, low, high, says] of found) {
      if (bars) {
        const zero = plot.y(0), top = Math.min(y, zero), tall = Math.max(Math.abs(zero - y), 0.5);
        plot.body.push(
          `<rect class="bar ${look[1]}" x="${place(x - wide * 0.46)}" y="${place(top)}" width="${place(wide * 0.92)}" ` +
            `height="${place(tall)}"><title>${safe(says)}</title></rect>`);
      }
      plot.body.push(line(`whisker ${bars ? 'over' : look[1]}`, x, low, x, high));
      if (!bars) plot.body.push(mark(look, x, y, says));
    }
  });
};

// Factor by which the largest change exceeds those of seed and after when they get a plot of their own.
const HIDDEN = 4;

// A sweep: [metric, its title, in points], [axis, its title, 0 even, 1 by doublings, 2 without an order], and rows of
// [label, place, the point as --point takes it, cells]; a cell is [value, lowest, highest, change, low, high].
const sweep = ([id, arms, options], [metric, title, points], [axis, below, lie], rows) => {
  const places = rows.map(([, x]) => x), farthest = Math.max(...places), bars = lie === 2;
  const slot = bars ? (WIDTH - LEFT - RIGHT) / rows.length : 0;
  const along = () => {
    if (bars) return slots(rows.length);
    if (lie === 0) {
      const least = Math.min(...places), room = Math.max((farthest - least) * 0.04, 0.02);
      return even(least - room, farthest + room);
    }
    const least = Math.min(...places.filter(x => x > 0), Math.max(farthest, 1));
    const high = Math.max(farthest, least), room = Math.max((high / least) ** 0.04, 1.02);
    return log(least / room, high * room, places.some(x => x <= 0));
  };
  const cells = rows.flatMap(([, , , cells]) => cells.filter(cell => cell));
  const own = arms.map(([, look], arm) => [arm, look]).filter(([, look]) => look === 'seed' || look === 'after');
  const against = arms[0][0], unit = points ? 'points' : '%';
  // One disturbed round must not squeeze the others: the medians set the scale, and whiskers are cut.
  const top = 1.5 * Math.max(...cells.map(cell => cell[0]).filter(Number.isFinite)), cut = value => Math.min(value, top);
  const [low, high, ticks] = fromZero(cells.map(cell => cut(cell[2] ?? 0)));
  const level = frame(along(), even(low, high));
  level.left(ticks, tick => figure(tick, points));
  level.titles(below, title);
  const levels = ([middle, low, high]) =>
    Number.isFinite(middle) && [middle, cut(low ?? middle), cut(high ?? middle)];
  series(level, arms, rows, bars, slot, levels, cell => figure(cell[0], points));
  let html = '<div class="plots">' + captioned(level.finish(`${metric} by ${axis}, of each arm`),
    safe(`${metric[0].toUpperCase()}${metric.slice(1)} by ${axis}; ` +
      'whiskers are the lowest and highest round, cut where they leave the plot.'));
  const isClear = cell => cell && Number.isFinite(cell[4]);
  const changeOf = shown => rows.flatMap(([, , , cells]) => shown.map(arm => cells[arm])).filter(isClear);
  const change = (shown, says) => {
    const clear = changeOf(shown);
    if (!clear.length) return '';
    // Intervals of few noisy rounds are cut where they leave the plot.
    const all = clear.map(cell => cell[3]), room = Math.max(1, ...all.map(Math.abs)) * 0.35;
    const bound = value => Math.min(Math.max(value, Math.min(0, ...all) - room), Math.max(0, ...all) + room);
    const [low, high, ticks] = fromZero(clear.flatMap(cell => [bound(cell[4]), bound(cell[5])]));
    const plot = frame(along(), even(low, high)), digits = ticks.every(Number.isInteger) ? 0 : 1;
    plot.left(ticks, tick => (Math.abs(tick) < 0.05 ? '0' : plus(tick.toFixed(digits))));
    plot.titles(below, `change against ${against} (${unit})`);
    const value = cell => isClear(cell) && [cell[3], bound(cell[4]), bound(cell[5])];
    const only = rows.map(([words, x, point, cells]) =>
      [words, x, point, cells.map((cell, arm) => (shown.includes(arm) ? cell : null))]);
    series(plot, arms, only, bars, slot, value, cell => told(cell.slice(3), points));
    return captioned(plot.finish(`Change of ${metric} against ${against}, by ${axis}`), safe(says));
  };
  const everyone = arms.map((_, arm) => arm), alone = own.map(([arm]) => arm);
  html += change(everyone,
    `The same as a change against ${against}; whiskers are 95 % intervals, cut where they leave the plot.`);
  // If another arm changes so much more that seed and after lie on one line, these get a plot of their own.
  const largest = shown => Math.max(0, ...changeOf(shown).map(cell => Math.abs(cell[3])));
  if (largest(alone) * HIDDEN < largest(everyone))
    html += change(alone,
      `The same change of ${alone.map(arm => arms[arm][0]).join(' and ')} alone, at its own scale; whiskers cut likewise.`);
  const used = arms.map((_, arm) => arm).filter(arm => rows.some(([, , , cells]) => cells[arm]));
  const cell = given => {
    if (!given) return '<td>-</td>';
    const change = given.length > 3 ? `<small>${safe(told(given.slice(3), points))}</small>` : '';
    return `<td>${safe(figure(given[0], points))}${change}</td>`;
  };
  const body = rows.map(([words, , point, cells]) =>
    `<tr><th>${safe(words)}</th>${used.map(arm => cell(cells[arm])).join('')}` +
    `<td class="words"><code>sheave-lab ${safe(id)} --point ${safe(point + options)}</code></td></tr>`);
  return html + '</div>' + folded('Figures, and the command that repeats each row',
    [axis, ...used.map(arm => arms[arm][0]), 'command'], body.join(''));
};

const folded = (summary, head, body) =>
  `<details><summary>${safe(summary)}</summary><div class="scroll"><table><thead><tr>` +
  head.map(words => `<th>${safe(words)}</th>`).join('') + `</tr></thead><tbody>${body}</tbody></table></div></details>`;

// A folded table: rows of a name and figures. `against` says that the second figure and later ones are differences.
const table = (_, summary, head, against, rows) =>
  folded(summary, head, rows.map(([name, ...cells]) => {
    const words = (value, at) =>
      typeof value === 'string' ? value : value === null ? '-' : against && at > 0 ? difference(value) : String(value);
    return `<tr><th>${safe(name)}</th>${cells.map((value, at) => `<td>${safe(words(value, at))}</td>`).join('')}</tr>`;
  }).join(''));
const difference = value => (Math.abs(value) < 0.05 ? '' : plus(value.toFixed(1)));

// A prediction: curves of [arm, points of [cores, low, middle, high]], and the published points: [arm, cores, IOPS].
const prediction = ([, arms], curves, known) => {
  const points = curves.flatMap(([, points]) => points);
  const values = [...points.flatMap(([, low, , high]) => [low, high]), ...known.map(([, , iops]) => iops)];
  const least = Math.min(...values.filter(iops => iops > 0)) / 1.6, most = Math.max(...values) * 1.6;
  const cores = Math.max(...points.map(([cores]) => cores)), doublings = [];
  for (let count = 1; count <= cores * 1.001; count *= 2) doublings.push([count, String(count)]);
  const plot = frame(log(0.94, cores * 1.06), log(least, most));
  plot.left(logTicks(least, most), tick => figure(tick));
  plot.below(doublings);
  plot.titles('cores, each with one thread', 'I/O per second, all cores together');
  plot.legend(curves.map(([arm]) => [`${arms[arm][0]} (prediction)`, arms[arm][1]]), true);
  for (const [arm, points] of curves) {
    const along = of => points.map(point => plot.at(point[0], Math.max(point[of], least))), [, look] = arms[arm];
    plot.body.push(`<path class="shade ${look}" d="${path([...along(1), ...along(3).reverse()])}"/>`);
    plot.body.push(`<path class="line dashed ${look}" d="${path(along(2))}"/>`);
  }
  for (const [arm, cores, iops] of known) {
    const [name, look, shape] = arms[arm], says = `${name}, ${cores} cores: published ${figure(iops)}`;
    plot.body.push(mark([name, look, shape === RING ? 0 : shape], ...plot.at(cores, iops), says));
  }
  return plot.finish('Prediction: I/O per second by cores');
};

const KINDS = { changes, latencies, sweep, table, prediction };
const [experiments, drawn] = JSON.parse(document.getElementById('data').textContent);
drawn.forEach(([kind, of, ...parts], at) => {
  document.getElementById(`f${at}`).innerHTML = KINDS[kind](experiments[of], ...parts);
});
