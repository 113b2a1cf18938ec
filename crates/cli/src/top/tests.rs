//! Tests of the rates, of the text output, and of the display in several sizes.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use sheave_daemon::api::types as t;

use super::rates::{Board, History};
use super::screen::{Screen, Sort, View};
use super::{draw, text};

fn export(name: &str, ios: u64, slow: u64) -> t::ExportStatistics {
    let cells = [(1 << 16, ios - slow), (1 << 26, slow)];
    let kind = t::KindStatistics {
        kind: "read".into(),
        ios,
        bytes: ios * 4096,
        time_ns: ios * 100_000,
        stages: t::SplitRow { tag_ns: ios * 25_000, driver_ns: ios * 75_000, ..t::SplitRow::default() },
        latencies: cells.map(|(from_ns, ios)| t::LatencyCell { from_ns, ios }).into(),
    };
    t::ExportStatistics {
        name: name.into(),
        pool: Some("tank".into()),
        volume: Some(name.into()),
        size_bytes: 10 << 30,
        clients: 1,
        failed_requests: 0,
        requests: t::RequestCounts { reads: ios, read_bytes: ios * 4096, ..t::RequestCounts::default() },
        failed: None,
        vhost_user: None,
        errors: 0,
        kinds: vec![kind],
    }
}

/// A device that is busy a quarter of the time, with 500 writes and 100 flushes a second, if statistics are kept.
fn device(name: &str, seconds: u64, kept: bool) -> t::DeviceStatistics {
    let operation = |operation: &str, ios, bytes| t::DeviceOperation {
        operation: operation.into(),
        ios,
        bytes,
        ..t::DeviceOperation::default()
    };
    let seconds = if kept { seconds } else { 0 };
    t::DeviceStatistics {
        name: name.into(),
        pool: Some("tank".into()),
        export: None,
        kept,
        operations: vec![operation("write", seconds * 500, seconds << 21), operation("flush", seconds * 100, 0)],
        busy_ns: seconds * 250_000_000,
        in_flight_reads: 1,
        in_flight_writes: 2,
        in_flight_others: 0,
    }
}

fn reading(seconds: u64, exports: Vec<t::ExportStatistics>) -> t::Statistics {
    let client = t::ClientRow {
        id: 7,
        peer: "tcp:127.0.0.1:4711".into(),
        export: Some("root".into()),
        connected_seconds: 1,
        read_bytes: seconds << 20,
        written_bytes: 0,
        failed_requests: 0,
    };
    let pool = t::PoolStatistics {
        name: "tank".into(),
        size_bytes: 100 << 30,
        data_bytes: seconds << 30,
        metadata_bytes: 0,
        free_bytes: (100 - seconds) << 30,
        state: "ok".into(),
        host_free_bytes: None,
        lost_if_killed: None,
        failed: None,
    };
    t::Statistics {
        uptime_ns: seconds * 1_000_000_000,
        reactors: 2,
        queues: vec![t::QueueStatistics { queue: 1, errors: 0, kinds: export("all", seconds * 600, 0).kinds }],
        exports_total: exports.len() as u64,
        exports,
        pools: vec![pool],
        pools_total: 1,
        clients: vec![client],
        clients_total: 1,
        devices: vec![device("file:/srv/tank.img", seconds, true), device("ram:size=1M", seconds, false)],
        devices_total: 2,
        health: t::Health::default(),
    }
}

/// Returns a board after two seconds in which `root` did 2000 reads, 40 of them slow, and `bad` did 200. The name of
/// `bad` contains a control sequence.
fn board() -> Board {
    let before = vec![export("root", 5000, 5000), export("b\u{1b}[2Jad", 1, 0)];
    let after = vec![export("root", 7000, 5040), export("b\u{1b}[2Jad", 201, 0)];
    History::new(reading(10, before)).next(reading(12, after))
}

/// Renders the display as lines.
fn picture(screen: &mut Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("made");
    terminal.draw(|frame| draw::draw(frame, screen)).expect("drawn");
    let buffer = terminal.backend().buffer().clone();
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

fn press(screen: &mut Screen, code: KeyCode) -> bool {
    screen.key(KeyEvent::new(code, KeyModifiers::NONE)).is_break()
}

#[test]
fn rates_are_of_the_time_between_two_readings() {
    let board = board();
    let root = board.exports.iter().find(|export| export.name == "root").expect("it is there");
    assert_eq!((root.rate.iops, root.rate.bytes_per_second), (1000.0, 4_096_000.0));
    // The 5000 slow reads happened before the first reading.
    assert_eq!((root.rate.p50_ns, root.rate.p99_ns), (1 << 16, 1 << 26));
    assert!((root.rate.depth - 0.1).abs() < 1e-9, "{}", root.rate.depth);
    assert_eq!((root.rate.split.tag, root.rate.split.driver), (0.25, 0.75));
    let pool = &board.pools[0];
    assert_eq!((pool.full_in_seconds, pool.fills_bytes_per_second), (Some(88), f64::from(1 << 30)));
    assert_eq!(board.clients[0].read_bytes_per_second, f64::from(1 << 20));
    let device = &board.devices[0];
    assert_eq!((device.utilization, device.iops, device.writes_per_second), (0.25, 600.0, 500.0));
    assert_eq!((device.bytes_per_second, device.in_flight), (f64::from(1 << 21), 3));
    let queue = &board.queues[0];
    assert_eq!((queue.queue, queue.rate.iops, queue.kinds[0].kind.as_str()), (1, 600.0, "read"));
}

#[test]
fn what_was_done_before_somebody_looked_is_no_rate() {
    let board = History::new(reading(1, Vec::new())).next(reading(2, vec![export("new", 1000, 0)]));
    assert_eq!(board.exports[0].rate.iops, 0.0);
    let board = History::new(reading(1, vec![export("again", 1000, 0)])).next(reading(2, vec![export("again", 1, 0)]));
    assert_eq!(board.exports[0].rate.iops, 0.0);
}

#[test]
fn the_picture_has_all_of_it_at_80_and_at_200_columns() {
    for (width, height) in [(80, 24), (200, 50)] {
        let mut screen = Screen::default();
        screen.show(board());
        let seen = picture(&mut screen, width, height);
        for word in
            ["exports 2, clients 1, pools 1, threads 2", "IOPS", "1000", "3.9", "SPLIT", "tddd", "full in", "q quit"]
        {
            assert!(seen.contains(word), "{word} is not in\n{seen}");
        }
        assert!(!seen.contains('\u{1b}'), "{seen:?}");
        press(&mut screen, KeyCode::Enter);
        let seen = picture(&mut screen, width, height);
        for word in ["root: tank#root, 10 GiB, clients 1", "read", "tag       25.0 %", "driver    75.0 %"] {
            assert!(seen.contains(word), "{word} is not in\n{seen}");
        }
        press(&mut screen, KeyCode::Tab);
        assert!(picture(&mut screen, width, height).contains("tcp:127.0.0.1:4711"));
        press(&mut screen, KeyCode::Tab);
        assert!(picture(&mut screen, width, height).contains("tank: 12 GiB of 100 GiB used"));
        press(&mut screen, KeyCode::Tab);
        let seen = picture(&mut screen, width, height);
        let row = seen.lines().find(|line| line.starts_with("1 ")).expect("the row of queue 1");
        assert!(row.contains(" 600 ") && row.contains("tddd"), "{seen}");
        press(&mut screen, KeyCode::Tab);
        let seen = picture(&mut screen, width, height);
        let row = seen.lines().find(|line| line.starts_with("file:/srv/tank.img ")).expect("the row of the device");
        for word in [" 25.0 ", " 3 ", " 600 ", " 2.0 ", "pool tank"] {
            assert!(row.contains(word), "{word} is not in\n{seen}");
        }
        let row = seen.lines().find(|line| line.starts_with("ram:size=1M ")).expect("the row of the other");
        assert!(row.contains(" off ") && row.contains(" 3 "), "{seen}");
    }
    // Even on a terminal of a single cell it must not panic.
    let mut screen = Screen::default();
    screen.show(board());
    for (width, height) in [(1, 1), (10, 3), (40, 5)] {
        picture(&mut screen, width, height);
    }
}

/// Returns a board with an export that a virtual machine has attached by two of its queues, and one that none has.
fn attached() -> Board {
    let queue = |queue, in_flight| t::VhostQueue { queue, reactor: queue % 2, size: 256, in_flight };
    let device = |client: Option<u64>| t::VhostUser {
        socket: "/run/r\u{1b}oot.sock".into(),
        queues: 4,
        client,
        running: client.map_or(Vec::new(), |_| vec![queue(0, 17), queue(3, 0)]),
    };
    let exports = |ios| {
        let mut root = export("root", ios, 0);
        root.vhost_user = Some(device(Some(7)));
        let mut idle = export("idle", 1, 0);
        idle.vhost_user = Some(device(None));
        vec![root, idle]
    };
    History::new(reading(10, exports(10))).next(reading(12, exports(1000)))
}

#[test]
fn the_queues_of_a_vhost_user_device_are_shown() {
    let page = text::page(&attached());
    for row in [
        "VHOST-USER             QUEUE    THREAD       SIZE  IN FLIGHT\n",
        "idle                       -         -          -          -\n",
        "root                       0         0        256         17\n",
        "root                       3         1        256          0\n",
    ] {
        assert!(page.contains(row), "{row} is not in\n{page}");
    }
    assert!(!text::page(&board()).contains("VHOST-USER"), "without such a device there is no table");
    let mut screen = Screen::default();
    screen.show(attached());
    press(&mut screen, KeyCode::Enter);
    let seen = picture(&mut screen, 80, 30);
    for word in ["vhost-user at /run/r?oot.sock (client 7, queues 2 of 4)", "IN FLIGHT", " 17\n", "reap"] {
        assert!(seen.contains(word), "{word} is not in\n{seen}");
    }
    for (width, height) in [(1, 1), (10, 3), (40, 5), (80, 12)] {
        picture(&mut screen, width, height);
    }
}

#[test]
fn keys_sort_choose_and_end() {
    let mut screen = Screen::default();
    screen.show(board());
    assert_eq!(screen.board.exports[0].name, "root");
    for sort in [Sort::Bytes, Sort::P99, Sort::Depth, Sort::Name] {
        press(&mut screen, KeyCode::Char('s'));
        assert_eq!(screen.sort, sort);
    }
    assert_eq!(screen.board.exports[0].name, "b\u{1b}[2Jad");
    press(&mut screen, KeyCode::Down);
    press(&mut screen, KeyCode::Down);
    assert_eq!(screen.chosen, 1);
    press(&mut screen, KeyCode::Enter);
    assert_eq!(screen.detail.as_deref(), Some("root"));
    press(&mut screen, KeyCode::Esc);
    press(&mut screen, KeyCode::Char('3'));
    assert_eq!((screen.detail.as_ref(), screen.view, screen.chosen), (None, View::Pools, 0));
    assert!(press(&mut screen, KeyCode::Char('q')));
    assert!(screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)).is_break());
}

#[test]
fn the_text_has_the_same_and_obeys_no_name() {
    let page = text::page(&board());
    assert!(page.contains("tttttddddddddddddddd\n") && page.contains("full in"), "{page}");
    assert!(
        page.contains("file:/srv/tank.img                25.0          3       600       2.0  pool tank\n"),
        "{page}"
    );
    assert!(page.contains("b?[2Jad") && !page.contains('\u{1b}'), "{page:?}");
}
