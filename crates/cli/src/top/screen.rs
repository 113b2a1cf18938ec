//! State of the display, and the effect of keys.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::rates::{Board, ExportRate};

/// Selected list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Exports,
    Clients,
    Pools,
    Queues,
    Devices,
}

/// Order of exports: by name ascending, by other values descending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Iops,
    Bytes,
    P99,
    Depth,
    Name,
}

impl Sort {
    /// Returns the heading of the column.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Iops => "IOPS",
            Sort::Bytes => "MiB/s",
            Sort::P99 => "p99",
            Sort::Depth => "DEPTH",
            Sort::Name => "EXPORT",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Iops => Sort::Bytes,
            Sort::Bytes => Sort::P99,
            Sort::P99 => Sort::Depth,
            Sort::Depth => Sort::Name,
            Sort::Name => Sort::Iops,
        }
    }

    fn order(self, a: &ExportRate, b: &ExportRate) -> Ordering {
        let by = match self {
            Sort::Iops => b.rate.iops.total_cmp(&a.rate.iops),
            Sort::Bytes => b.rate.bytes_per_second.total_cmp(&a.rate.bytes_per_second),
            Sort::P99 => b.rate.p99_ns.cmp(&a.rate.p99_ns),
            Sort::Depth => b.rate.depth.total_cmp(&a.rate.depth),
            Sort::Name => Ordering::Equal,
        };
        by.then_with(|| a.name.cmp(&b.name))
    }
}

/// State of the display.
#[derive(Default)]
pub struct Screen {
    pub board: Board,
    pub view: View,
    pub sort: Sort,
    /// Index of the selected row.
    pub chosen: usize,
    /// Name of the export whose details are shown. It is a name, because rows move.
    pub detail: Option<String>,
}

impl Screen {
    /// Shows new values.
    pub fn show(&mut self, board: Board) {
        self.board = board;
        self.sorted();
    }

    fn sorted(&mut self) {
        self.board.exports.sort_by(|a, b| self.sort.order(a, b));
        self.chosen = self.chosen.min(self.rows().saturating_sub(1));
    }

    fn rows(&self) -> usize {
        match self.view {
            View::Exports => self.board.exports.len(),
            View::Clients => self.board.clients.len(),
            View::Pools => self.board.pools.len(),
            View::Queues => self.board.queues.len(),
            View::Devices => self.board.devices.len(),
        }
    }

    /// Returns the export whose details are shown, as long as it exists.
    pub fn detailed(&self) -> Option<&ExportRate> {
        let name = self.detail.as_ref()?;
        self.board.exports.iter().find(|export| export.name == *name)
    }

    /// Handles a key; `Break` ends the command.
    pub fn key(&mut self, key: KeyEvent) -> ControlFlow<()> {
        if key.kind == KeyEventKind::Release {
            return ControlFlow::Continue(());
        }
        match key.code {
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => return ControlFlow::Break(()),
            KeyCode::Char('q') => return ControlFlow::Break(()),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => self.detail = None,
            KeyCode::Char('1') => self.turn(View::Exports),
            KeyCode::Char('2') => self.turn(View::Clients),
            KeyCode::Char('3') => self.turn(View::Pools),
            KeyCode::Char('4') => self.turn(View::Queues),
            KeyCode::Char('5') => self.turn(View::Devices),
            KeyCode::Tab => self.turn(match self.view {
                View::Exports => View::Clients,
                View::Clients => View::Pools,
                View::Pools => View::Queues,
                View::Queues => View::Devices,
                View::Devices => View::Exports,
            }),
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.sorted();
            }
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                self.chosen = (self.chosen + 1).min(self.rows().saturating_sub(1));
            }
            KeyCode::Enter | KeyCode::Right if self.view == View::Exports => {
                self.detail = self.board.exports.get(self.chosen).map(|export| export.name.clone());
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn turn(&mut self, view: View) {
        (self.view, self.detail, self.chosen) = (view, None, 0);
    }
}
