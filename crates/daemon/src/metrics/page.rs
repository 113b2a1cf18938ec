//! Output of metrics, in families of values.
//!
//! G1. A family lists at most [`MOST_NAMED`] exports or pools by name, in the order in which they are served, so that a
//! name keeps its series. The sum of all others has the empty name. That keeps the page small whatever is served.

use std::fmt::Write as _;

/// Maximum number of exports or pools in a family (G1).
pub(super) const MOST_NAMED: usize = 1000;

/// A page that is being written.
pub(super) struct Page {
    pub text: String,
    /// Format OpenMetrics, in which the name of a counter's family lacks the suffix of its values.
    pub is_open: bool,
}

impl Page {
    /// Writes the head of a family.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let suffix = if kind == "counter" && !self.is_open { "_total" } else { "" };
        // Writing to a string never fails.
        let _ = write!(self.text, "# TYPE {name}{suffix} {kind}\n# HELP {name}{suffix} {help}\n");
    }

    /// Writes a value; `name` includes the suffix that its kind requires.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text += name;
        for (at, (label, of)) in labels.iter().enumerate() {
            let of = of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{of}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Writes a family with one value for each name, under the given label (G1).
    pub fn family(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(String, u64)]) {
        self.head(name, kind, help);
        let name = format!("{name}{}", if kind == "counter" { "_total" } else { "" });
        let (named, others) = values.split_at(values.len().min(MOST_NAMED));
        for (of, value) in named {
            let labels = [(label, of.as_str())];
            self.value(&name, if label.is_empty() { &[] } else { &labels }, value);
        }
        if !others.is_empty() {
            self.value(&name, &[(label, "")], others.iter().map(|(_, value)| value).sum::<u64>());
        }
    }

    /// Writes a family with a single value and no label.
    pub fn single(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "gauge", help, "", &[(String::new(), value)]);
    }
}
