//! `sheave serve --web`: the status page in a browser, and requests that the daemon refuses.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::browser::Browser;
use serde_json::Value;

use crate::daemon::{BOTH, Daemon, Nbd, ask_ok, pools};

/// Returns the port that the daemon has chosen for its status page.
fn port(daemon: &Daemon) -> u16 {
    let said = daemon.said();
    let (_, after) = said.split_once("the status page is at http://127.0.0.1:").expect("it says where");
    after.split_once('/').and_then(|(port, _)| port.parse().ok()).expect("a port")
}

/// Sends the head of an HTTP request. Returns the whole answer.
fn ask(port: u16, head: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Returns the body of a page of the daemon.
pub fn get(daemon: &Daemon, path: &str) -> String {
    let told = ask(port(daemon), &format!("GET {path} HTTP/1.1\r\nHost: localhost"));
    told.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// Returns the relative luminance of a CSS colour, from 0 to 1 (WCAG 2.1).
fn light(colour: &Value) -> f64 {
    let numbers = colour.as_str().expect("a colour").trim_start_matches("rgb(").trim_end_matches(')');
    let linear = |number: &str| {
        let part = number.trim().parse::<f64>().expect("a number") / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    let parts: Vec<f64> = numbers.split(',').map(linear).collect();
    0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
}

/// Returns the contrast ratio of two CSS colours, from 1 to 21 (WCAG 2.1).
fn contrast(one: &Value, other: &Value) -> f64 {
    let (one, other) = (light(one), light(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// Name of an export that would run a script if the page inserted it as markup.
const ODD: &str = "<img src=x onerror=boom()>";

#[test]
fn the_status_page_shows_what_happens_light_and_dark_wide_and_narrow() {
    let Some(dir) = pools() else { return };
    let Some(mut browser) = Browser::start() else { return };
    let odd = format!("web = \"0\"\n{BOTH}\n[[export]]\nname = \"{ODD}\"\nspec = \"null:size=1M\"\n");
    let daemon = Daemon::start(&dir, &odd);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: the flag only ends the loop, and no data depends on it.
            while !ends.load(Ordering::Relaxed) {
                assert_eq!(client.write(0, &[1; 4096]), Some(0));
                assert!(client.read(0, 4096).is_some());
            }
        });
        // If `look` panics, this guard ends the client. Otherwise the scope would wait for the client for ever.
        let _end = scopeguard(&ends);
        look(&mut browser, port(&daemon));
    });
    daemon.end();
    browser.until("document.getElementById('state').textContent.startsWith('no answer since')");
}

/// Sets `ends` when the returned value is dropped.
fn scopeguard(ends: &AtomicBool) -> impl Drop + '_ {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    End(ends)
}

/// Checks every part of the page.
fn look(browser: &mut Browser, port: u16) {
    browser.look("light", 1280, 900);
    browser.go(&format!("http://127.0.0.1:{port}/"));
    browser.until("document.documentElement.dataset.readings >= 4");
    assert_eq!(browser.value("document.getElementById('state').textContent"), "live");
    // The busy export is in the first row, with its figures.
    let cell = |row: u32, column: u32| {
        format!("document.querySelectorAll('#exports tbody tr')[{row}].children[{column}].textContent")
    };
    assert_eq!(browser.value("document.querySelectorAll('#exports tbody tr').length"), 3);
    assert_eq!(browser.value(&cell(0, 0)), "va");
    assert_eq!(browser.value(&cell(0, 1)), "a#v");
    browser.until(&format!("parseFloat({}) > 1", cell(0, 3)));
    let split =
        "[...document.querySelectorAll('#exports tbody tr:first-child .bar i')].map(i => parseFloat(i.style.width))";
    let sum = browser.value(&format!("{split}.reduce((a, b) => a + b, 0)")).as_f64().expect("a number");
    assert!((sum - 100.0).abs() < 0.1, "{sum}");
    browser.until("document.querySelector('#exports tbody tr svg.spark path')?.getTotalLength() > 1");
    // The page shows the odd name as text.
    let names = browser.value("[...document.querySelectorAll('#exports tbody button')].map(b => b.textContent)");
    assert!(names.as_array().expect("names").iter().any(|name| name == ODD), "{names}");
    assert_eq!(browser.value("document.images.length"), 0);
    for (part, words) in [("pools", "a: "), ("pools", "of 12"), ("clients", "va"), ("tiles", "IOPS"), ("slow-list", "")]
    {
        let text = browser.value(&format!("document.getElementById('{part}').innerText"));
        assert!(text.as_str().is_some_and(|text| text.contains(words) && !text.is_empty()), "{part}: {text}");
    }
    // A click on an export shows its details. They stay while the page reads new figures.
    assert_eq!(browser.value("document.getElementById('detail').hidden"), true);
    browser.value("document.querySelector('#exports tbody button').click()");
    let before = browser.value("document.documentElement.dataset.readings");
    browser.until(&format!("document.documentElement.dataset.readings > {}", before.as_str().expect("a number")));
    assert_eq!(browser.value("document.getElementById('detail').hidden"), false);
    let kinds =
        browser.value("[...document.querySelectorAll('#kinds tbody tr')].map(row => row.children[0].textContent)");
    assert_eq!(kinds, serde_json::json!(["all", "read", "write"]));
    browser.until("document.getElementById('heat').getAttribute('aria-label').includes('now p50 ')");
    let drawn = "(() => { const c = document.getElementById('heat'); const d = c.getContext('2d').getImageData(0, 0, \
                 c.width, c.height).data; return d.filter((v, at) => at % 4 === 3 && v > 0).length; })()";
    assert!(browser.value(drawn).as_u64().expect("a number") > 1000, "the heat map is empty");
    // A click on a head of a column sorts the table by it.
    browser.value("document.querySelectorAll('#exports th button')[0].click()");
    assert_eq!(browser.value(&cell(0, 0)), ODD);
    browser.value("const f = document.getElementById('filter'); f.value = 'v'; f.oninput()");
    assert_eq!(browser.value("document.querySelectorAll('#exports tbody tr').length"), 2);
    for scheme in ["light", "dark"] {
        for width in [1280, 380] {
            browser.look(scheme, width, 900);
            legible(browser, scheme, width);
        }
    }
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

/// Asserts that text and pictures have enough contrast, and that nothing is wider than the window.
fn legible(browser: &mut Browser, scheme: &str, width: u32) {
    let style = |of: &str, what: &str| format!("getComputedStyle(document.querySelector('{of}')).{what}");
    let ground = browser.value(&style("body", "backgroundColor"));
    assert_eq!(light(&ground) > 0.5, scheme == "light", "{scheme}: {ground}");
    let card = browser.value(&style(".card", "backgroundColor"));
    for (of, what, least) in [
        ("body", "color", 7.0),
        (".quiet", "color", 4.5),
        ("#exports tbody button", "color", 4.5),
        ("#key .worker", "backgroundColor", 3.0),
        ("#key .tag", "backgroundColor", 3.0),
        ("#key .plugged", "backgroundColor", 3.0),
        ("#key .driver", "backgroundColor", 3.0),
        ("#key .reap", "backgroundColor", 3.0),
    ] {
        let colour = browser.value(&style(of, what));
        let is = contrast(&colour, &card);
        assert!(is >= least, "{scheme}: {of} is {colour} on {card}: {is:.1}, at least {least}");
    }
    let wide = browser.value("document.documentElement.scrollWidth").as_u64().expect("a number");
    assert!(wide <= u64::from(width), "{scheme}: {wide} of {width}");
}

/// The page shows good health, a warning and a critical problem in legible words and colours, at each width.
#[test]
fn the_page_tells_each_state_of_the_health_light_and_dark_at_three_widths() {
    let Some(dir) = pools() else { return };
    let Some(mut browser) = Browser::start() else { return };
    let mut daemon = Daemon::start(&dir, &format!("web = \"0\"\nreach = [\".\"]\n{BOTH}"));
    browser.look("light", 1280, 900);
    browser.go(&format!("http://127.0.0.1:{}/", port(&daemon)));
    let words = |browser: &mut Browser, severity: &str, words: &[&str]| {
        browser.until(&format!("document.getElementById('severity').className === '{severity}'"));
        for text in words {
            browser.until(&format!("document.body.innerText.includes({text:?})"));
        }
        for (scheme, width) in
            [("light", 380), ("light", 1280), ("light", 1920), ("dark", 380), ("dark", 1280), ("dark", 1920)]
        {
            browser.look(scheme, width, 900);
            legible(browser, scheme, width);
            let style = |of: &str, what: &str| format!("getComputedStyle(document.querySelector('{of}')).{what}");
            let ground = browser.value(&style("body", "backgroundColor"));
            let colour = browser.value(&style("#severity", "color"));
            let is = contrast(&colour, &ground);
            assert!(is >= 4.5, "{scheme}: {severity} is {colour} on {ground}: {is:.1}");
        }
    };
    words(&mut browser, "ok", &["all is well"]);
    assert_eq!(browser.value("document.getElementById('health').hidden"), true);
    ask_ok(&dir, "pool set a.img --low-water 126M");
    words(&mut browser, "warning", &["pool 'a' is low: ", "Delete snapshots, or give it more"]);
    assert_eq!(browser.value("document.title"), "warning 1 - Sheave");
    // A pool whose file is missing: the page lists the pool and its export among the others.
    let gone = "[[pool]]\nname = \"gone\"\npath = \"gone.img\"\n\
                [[export]]\nname = \"vg\"\npool = \"gone\"\nvolume = \"v\"\n";
    std::fs::write(dir.path("c.toml"), format!("web = \"0\"\nreach = [\".\"]\n{BOTH}{gone}")).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("event=pool_failed");
    words(&mut browser, "critical", &["pool 'gone' is not open: ", "its export 'vg' is not served", "gone: not open"]);
    assert_eq!(browser.value("document.title"), "critical 1, warning 1 - Sheave");
    let row = "[...document.querySelectorAll('#exports tbody tr')].find(row => row.innerText.includes('vg')).innerText";
    let row = browser.value(row);
    assert!(row.as_str().is_some_and(|row| row.contains("not served: ")), "{row}");
    ask_ok(&dir, "pool create gone.img --size 16M");
    ask_ok(&dir, "volume create gone.img#v --size 1M");
    ask_ok(&dir, "pool set a.img --low-water off");
    words(&mut browser, "ok", &["all is well"]);
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    daemon.end();
}

/// The server keeps the figures of the last hour, so a page that is opened late shows the past too.
#[test]
fn the_page_shows_what_was_before_it_was_opened() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, &format!("web = \"0\"\n{BOTH}"));
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    let get = |path: &str| serde_json::from_str::<Value>(&get(&daemon, path)).expect("JSON");
    // Reads of a hole reach no device, but they count as requests.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        assert!(client.read(0, 4096).is_some());
        let history = get("/history");
        let points = history["points"].as_array().expect("a list");
        let busy = points.iter().any(|point| point["requests_per_second"].as_f64() > Some(1.0));
        if busy && history["exports"]["va"].as_array().is_some_and(|line| line.len() >= points.len().min(2)) {
            assert!(history["pools"]["a"][0].as_f64() > Some(1e6), "{history}");
            break;
        }
        assert!(std::time::Instant::now() < until, "{history}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let told = get("/statistics");
    let va = told["exports"].as_array().expect("a list").iter().find(|one| one["name"] == "va").expect("it is there");
    assert!(va["requests"]["reads"].as_u64() > Some(10) && va["kinds"] == serde_json::json!([]), "{va}");
    daemon.end();
}

#[test]
fn only_who_asks_by_an_address_of_this_machine_is_answered() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::run(&dir, "serve a.img#v --nbd unix:nbd.sock --web 0");
    let port = port(&daemon);
    let get = |path: &str, host: &str| ask(port, &format!("GET {path} HTTP/1.1\r\nHost: {host}"));
    for host in ["127.0.0.1", &format!("localhost:{port}")] {
        let page = get("/", host);
        assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("<title>Sheave</title>"), "{page}");
        assert!(page.contains("\r\nContent-Security-Policy: default-src 'none'; "), "{page}");
    }
    for path in ["/", "/metrics", "/statistics", "/history", "/slow"] {
        assert!(get(path, "rebound.example").starts_with("HTTP/1.1 403 "), "{path}");
        assert!(ask(port, &format!("GET {path} HTTP/1.1")).starts_with("HTTP/1.1 403 "), "{path}");
        assert!(get(path, "localhost").starts_with("HTTP/1.1 200 "), "{path}");
    }
    let told = get("/statistics", "localhost");
    let told: Value = serde_json::from_str(told.split_once("\r\n\r\n").expect("a head").1).expect("JSON");
    assert_eq!((&told["exports"][0]["name"], &told["pools_total"]), (&"v".into(), &1.into()), "{told}");
    assert!(get("/other", "localhost").starts_with("HTTP/1.1 404 "));
    let refused = ask(port, "POST / HTTP/1.1\r\nHost: localhost");
    assert!(refused.starts_with("HTTP/1.1 405 ") && refused.contains("\r\nAllow: GET, HEAD\r\n"), "{refused}");
    // HEAD is answered with the head of the answer to GET.
    let (head, whole) =
        (ask(port, "HEAD / HTTP/1.1\r\nHost: localhost"), ask(port, "GET / HTTP/1.1\r\nHost: localhost"));
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(whole.split_once("\r\n\r\n").map(|(first, _)| format!("{first}\r\n\r\n")), Some(head));
    daemon.end();
}
