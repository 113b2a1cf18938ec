//! Headless browser with one page, driven by the Chrome DevTools Protocol over two pipes.
//!
//! [`Browser`] owns the process and ends it when dropped. It collects the errors of the page.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use sheave_testkit::require;

/// Longest time for an answer of the browser, and for a condition to become true.
const PATIENCE: Duration = Duration::from_secs(60);

/// Running browser with one page.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: Option<String>,
    asked: u64,
    complaints: Vec<String>,
    /// Directory of the browser's profile and of the pipes.
    _dir: TempDir,
}

impl Browser {
    /// Starts a browser with an empty page. Returns `None`, and reports the test as skipped, if there is no browser.
    ///
    /// # Panics
    ///
    /// If the browser does not start.
    pub fn start() -> Option<Browser> {
        let program = require("chromium")?;
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let made = Command::new("mkfifo").args([at("to"), at("from")]).status();
        assert!(made.is_ok_and(|made| made.success()), "mkfifo");
        // The browser reads commands from descriptor 3 and writes answers to descriptor 4. The shell opens both.
        let script = "program=$1 to=$2 from=$3; shift 3; exec \"$program\" \"$@\" 3<\"$to\" 4>\"$from\"";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script, "sh"]).arg(program).args([at("to"), at("from")]);
        command.arg(format!("--user-data-dir={}", at("profile")));
        command.args(["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-quic"]);
        command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
        command.args(["--disable-sync", "--disable-dev-shm-usage", "about:blank"]);
        let quiet = || Stdio::null();
        let child = command.stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().expect("a shell");
        let to = OpenOptions::new().write(true).open(at("to")).expect("a pipe");
        let from = BufReader::new(File::open(at("from")).expect("a pipe"));
        let (tells, told) = channel();
        std::thread::spawn(move || {
            for message in from.split(0).map_while(Result::ok) {
                // The send fails when the `Browser` has been dropped.
                let _ = serde_json::from_slice(&message).map(|message: Value| tells.send(message));
            }
        });
        let mut browser = Browser { child, to, from: told, session: None, asked: 0, complaints: Vec::new(), _dir: dir };
        let target = browser.ask("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached =
            browser.ask("Target.attachToTarget", &json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.ask(domain, &json!({}));
        }
        Some(browser)
    }

    /// Opens an address, and waits until the page is loaded.
    ///
    /// # Panics
    ///
    /// If the browser cannot load the page.
    pub fn go(&mut self, address: &str) {
        let gone = self.ask("Page.navigate", &json!({ "url": address }));
        assert!(gone.get("errorText").is_none(), "{address}: {gone}");
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'");
    }

    /// Sets the size of the window and the preferred colour scheme, `light` or `dark`.
    pub fn look(&mut self, scheme: &str, width: u32, height: u32) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.ask("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Returns the value of a JavaScript expression that is evaluated in the page.
    ///
    /// # Panics
    ///
    /// If the expression throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut told = self.ask("Runtime.evaluate", &asked);
        assert!(told.get("exceptionDetails").is_none(), "{expression}: {told}");
        told["result"]["value"].take()
    }

    /// Waits until a JavaScript expression is true.
    ///
    /// # Panics
    ///
    /// If the expression is not true within a minute. The message has the text of the page.
    pub fn until(&mut self, expression: &str) {
        let until = Instant::now() + PATIENCE;
        while self.value(&format!("!!({expression})")) != true {
            if Instant::now() > until {
                panic!("not so: {expression}\n{}\n{:?}", self.value("document.body.innerText"), self.complaints);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the errors of the page: exceptions, errors in the console, and requests that the browser has blocked.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Sends a command and returns its result. Collects errors from the events that arrive meanwhile.
    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.asked += 1;
        let mut message = json!({ "id": self.asked, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let sent = self.to.write_all(format!("{message}\0").as_bytes());
        sent.unwrap_or_else(|error| panic!("the browser has ended before {method}: {error}"));
        loop {
            let mut told = self.from.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {method}"));
            if told["id"] == self.asked {
                assert!(told.get("error").is_none(), "{method}: {told}");
                return told["result"].take();
            }
            let what = &told["params"];
            let is_complaint = match told["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Log.entryAdded") => what["entry"]["level"] == "error",
                Some("Runtime.consoleAPICalled") => what["type"] == "error",
                _ => false,
            };
            if is_complaint {
                self.complaints.push(what.to_string());
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The kill fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
