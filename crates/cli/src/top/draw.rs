//! The display of `sheave top`.

use std::ops::Range;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use sheave_base::units::{fmt_bytes, fmt_ns};

use crate::control::commands::attached;
use crate::output::plain;

use super::rates::{ExportRate, QueueRate, Rate, Shares};
use super::screen::{Screen, View};
use super::text::{self, MOST_PROBLEMS, bar, cells, head, not_served, numbers, space};

/// Largest number of pools that are shown below the exports.
const POOLS_BELOW: usize = 3;

/// Draws the display.
pub fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let pools = if screen.view == View::Pools { 0 } else { screen.board.pools.len().min(POOLS_BELOW) };
    // Problems take at most a quarter of the screen.
    let most = (usize::from(frame.area().height) / 4).min(MOST_PROBLEMS);
    let problems = text::problems(&screen.board.health, most);
    let height = 1 + problems.len() as u16 + u16::from(problems.is_empty());
    let rows =
        [Constraint::Length(height), Constraint::Min(3), Constraint::Length(pools as u16), Constraint::Length(1)];
    let [top, middle, below, keys] = Layout::vertical(rows).areas(frame.area());
    let title = format!("sheave top: {}", head(&screen.board));
    let mut head = vec![Line::styled(title, Modifier::BOLD)];
    head.extend(problems.into_iter().map(|(is_critical, line)| {
        let colour = if is_critical { Color::Red } else { Color::Yellow };
        Line::styled(line, Style::new().fg(colour).add_modifier(Modifier::BOLD))
    }));
    frame.render_widget(Paragraph::new(head), top);
    match (screen.view, screen.detailed()) {
        (View::Exports, Some(export)) => detail(frame, middle, export),
        (View::Exports, None) => exports(frame, middle, screen),
        (View::Clients, _) => clients(frame, middle, screen),
        (View::Pools, _) => {
            let lines: Vec<_> = screen.board.pools.iter().map(|pool| Line::raw(space(pool))).collect();
            frame.render_widget(Paragraph::new(lines), middle);
        }
        (View::Queues, _) => queues(frame, middle, screen),
        (View::Devices, _) => devices(frame, middle, screen),
    }
    let lines: Vec<_> = screen.board.pools.iter().take(pools).map(|pool| Line::raw(space(pool))).collect();
    frame.render_widget(Paragraph::new(lines), below);
    let help = "1 exports 2 clients 3 pools 4 queues 5 devices|s sort|Enter, Esc|q quit|";
    let mut line = vec![Span::styled(help, Modifier::DIM)];
    for (letter, name) in [('w', "w"), ('t', "t"), ('p', "p"), ('d', "d"), ('r', "r")] {
        line.push(Span::styled(name, colour(letter)));
    }
    frame.render_widget(Paragraph::new(Line::from(line)), keys);
}

/// Returns the widths of the columns: a name, five numbers and a split.
fn widths() -> [Constraint; 7] {
    let [iops, rate, time, depth] = [8, 8, 9, 6].map(Constraint::Length);
    [Constraint::Min(16), iops, rate, time, time, depth, Constraint::Fill(1)]
}

/// Returns the length of a bar in the table's last column, SPLIT, in characters.
fn bar_width(area: Rect) -> usize {
    usize::from(area.width).saturating_sub(40 + 6) / 2
}

fn header(first: &'static str, sorted: &str) -> Row<'static> {
    let names = [first, "IOPS", "MiB/s", "p50", "p99", "DEPTH", "SPLIT"];
    let style = |name: &str| match name == sorted {
        true => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
        false => Style::new().add_modifier(Modifier::BOLD),
    };
    aligned(names.map(|name| Line::styled(name, style(name))), 1..6)
}

/// Returns a row whose cells at `numbers` are aligned to the right.
fn aligned<'a, const N: usize>(cells: [Line<'a>; N], numbers: Range<usize>) -> Row<'a> {
    let cell =
        |(at, line): (usize, Line<'a>)| Cell::new(if numbers.contains(&at) { line.right_aligned() } else { line });
    Row::new(cells.into_iter().enumerate().map(cell))
}

/// Draws a table, with the chosen row marked.
fn selectable(frame: &mut Frame<'_>, area: Rect, table: Table<'_>, screen: &Screen) {
    let mut state = TableState::new().with_selected(Some(screen.chosen));
    frame.render_stateful_widget(table.row_highlight_style(Modifier::REVERSED), area, &mut state);
}

fn rate_row(name: String, rate: &Rate, width: usize) -> Row<'static> {
    table_row(name, cells(rate), split(&rate.split, width))
}

fn table_row(name: String, numbers: [String; 5], last: Line<'static>) -> Row<'static> {
    let [a, b, c, d, e] = numbers.map(Line::raw);
    aligned([Line::raw(name), a, b, c, d, e, last], 1..6)
}

fn exports(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let width = bar_width(area);
    let row = |export: &ExportRate| {
        let last = match not_served(export) {
            Some(why) => Line::styled(why, Style::new().fg(Color::Red)),
            None => split(&export.rate.split, width),
        };
        table_row(plain(&export.name), numbers(export), last)
    };
    let table = Table::new(screen.board.exports.iter().map(row), widths()).header(header("EXPORT", screen.sort.name()));
    selectable(frame, area, table, screen);
}

/// Draws a row for the ring of each reactor.
fn queues(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let width = bar_width(area);
    let row = |queue: &QueueRate| rate_row(queue.queue.to_string(), &queue.rate, width);
    let table = Table::new(screen.board.queues.iter().map(row), widths()).header(header("QUEUE", ""));
    selectable(frame, area, table, screen);
}

fn devices(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let row = |cells: [String; 6]| aligned(cells.map(Line::raw), 1..5);
    let [util, in_flight, iops, rate] = [6, 9, 8, 8].map(Constraint::Length);
    let widths = [Constraint::Fill(2), util, in_flight, iops, rate, Constraint::Fill(1)];
    let rows = screen.board.devices.iter().map(|device| row(text::device_cells(device)));
    let table = Table::new(rows, widths).header(row(text::DEVICE_HEADS.map(str::to_owned)).style(Modifier::BOLD));
    selectable(frame, area, table, screen);
}

fn detail(frame: &mut Frame<'_>, area: Rect, export: &ExportRate) {
    // The queues of a vhost-user device are below the rest, in the room that is left.
    let queues = text::vhost_cells(export);
    let below = if queues.is_empty() { 0 } else { 2 + queues.len() as u16 };
    let parts = [Constraint::Length(3), Constraint::Length(6), Constraint::Min(6), Constraint::Length(below)];
    let [about, kinds, stages, queues_at] = Layout::vertical(parts).areas(area);
    let what = match (&export.pool, &export.volume) {
        (Some(pool), Some(volume)) => format!("{}#{}", plain(pool), plain(volume)),
        _ => "a device".into(),
    };
    let (size, clients) = (fmt_bytes(export.size_bytes), export.clients);
    let wrong = format!("errors {}, failed requests {}", export.errors, export.failed_requests);
    let mut lines = vec![format!("{}: {what}, {size}, clients {clients}", plain(&export.name)), wrong];
    lines.extend(export.vhost_user.as_ref().map(attached));
    frame.render_widget(Paragraph::new(lines.into_iter().map(Line::raw).collect::<Vec<_>>()), about);
    let width = bar_width(area);
    let all = std::iter::once(rate_row("all".into(), &export.rate, width));
    let of_kinds = export.kinds.iter().map(|kind| rate_row(kind.kind.clone(), &kind.rate, width));
    frame.render_widget(Table::new(all.chain(of_kinds), widths()).header(header("KIND", "")), kinds);
    let split = &export.rate.split;
    let parts = [
        ('w', "worker", split.worker),
        ('t', "tag", split.tag),
        ('p', "plugged", split.plugged),
        ('d', "driver", split.driver),
        ('r', "reap", split.reap),
    ];
    let mean = if export.rate.iops > 0.0 { export.rate.depth * 1e9 / export.rate.iops } else { 0.0 };
    let line = |(letter, name, part): (char, &str, f64)| {
        let columns = (part * f64::from(area.width.saturating_sub(32))).round() as usize;
        let text = format!("{name:8} {:5.1} %  {:>9}  ", part * 100.0, fmt_ns((mean * part) as u64));
        Line::from(vec![Span::raw(text), Span::styled(letter.to_string().repeat(columns), colour(letter))])
    };
    frame.render_widget(Paragraph::new(parts.map(line).to_vec()), stages);
    let row = |cells: [String; 5]| aligned(cells.map(Line::raw), 1..5);
    let widths = [Constraint::Min(16), Constraint::Length(8), Constraint::Length(8), Constraint::Length(9)];
    let widths = widths.into_iter().chain([Constraint::Length(9)]);
    let header = row(text::VHOST_HEADS.map(str::to_owned)).style(Modifier::BOLD);
    frame.render_widget(Table::new(queues.into_iter().map(row), widths).header(header), queues_at);
}

fn clients(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let header = Row::new(["CLIENT", "EXPORT", "READ/s", "WRITTEN/s", "FAILED", "FROM"]).style(Modifier::BOLD);
    let row = |client: &super::rates::ClientRate| {
        let rates = [client.read_bytes_per_second, client.written_bytes_per_second].map(|rate| fmt_bytes(rate as u64));
        let [read, written] = rates;
        let export = plain(client.export.as_deref().unwrap_or("-"));
        let failed = client.failed_requests.to_string();
        Row::new([client.id.to_string(), export, read, written, failed, plain(&client.peer)])
    };
    let widths = [
        Constraint::Length(8),
        Constraint::Length(16),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Fill(1),
    ];
    let table = Table::new(screen.board.clients.iter().map(row), widths).header(header);
    selectable(frame, area, table, screen);
}

/// Draws a bar with a colour for each stage. The letters distinguish the stages without colours.
fn split(shares: &Shares, width: usize) -> Line<'static> {
    Line::from_iter(bar(shares, width).chars().map(|letter| Span::styled(letter.to_string(), colour(letter))))
}

fn colour(letter: char) -> Style {
    let background = match letter {
        'w' => Color::Magenta,
        't' => Color::Yellow,
        'p' => Color::Cyan,
        'd' => Color::Green,
        _ => Color::Red,
    };
    Style::new().fg(Color::Black).bg(background)
}
