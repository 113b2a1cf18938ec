//! A page of metrics while it is written: families and their values.
//!
//! G1. A family has at most [`MOST_NAMED`] exports or pools by name, in the order in which they are served, so that a
//! name keeps its series; what the others have together has the empty name. So the page stays small whatever is served.

use std::fmt::Write as _;

/// Exports or pools that a family tells by name (G1).
pub(super) const MOST_NAMED: usize = 1000;

/// A page that is being written.
pub(super) struct Page {
    pub text: String,
    /// OpenMetrics, where a family of counters has another name than its values.
    pub is_open: bool,
}

impl Page {
    /// The head of a family.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let suffix = if kind == "counter" && !self.is_open { "_total" } else { "" };
        // Writing to a string never fails.
        let _ = write!(self.text, "# TYPE {name}{suffix} {kind}\n# HELP {name}{suffix} {help}\n");
    }

    /// A value of the family; `name` with the suffix that its kind wants.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text += name;
        for (at, (label, of)) in labels.iter().enumerate() {
            let of = of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{of}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// A family of values; each has the label and the value that it is told (G1).
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

    /// A value without a label.
    pub fn single(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "gauge", help, "", &[(String::new(), value)]);
    }
}
