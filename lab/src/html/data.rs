//! The data that the page's script draws, as compact JSON, so that the page of a long run stays small.
//!
//! Owns the position of the arrays in the page, and the script itself (`page.js`, which documents each array).

use super::json::Json;
use super::look::Look;
use super::words::lean;

/// Source of the script.
const SCRIPT: &str = include_str!("page.js");

/// All figures of a page.
#[derive(Debug, Default)]
pub struct Figures {
    experiments: Vec<Json>,
    drawn: Vec<Json>,
}

impl Figures {
    /// Begins an experiment, to which all figures belong until the next one begins.
    pub fn begin(&mut self, id: &str, looks: &[Look], options: &str) {
        self.experiments.push(Json::List(vec![id.into(), Json::list(looks.iter().map(Look::json)), options.into()]));
    }

    /// Adds a figure and returns the element in which the script draws it. `kind` is one of the names at the end of the
    /// script.
    pub fn draw(&mut self, kind: &str, parts: impl IntoIterator<Item = Json>) -> String {
        let of = self.experiments.len().saturating_sub(1);
        let mut figure = vec![kind.into(), Json::Number(of as f64)];
        figure.extend(parts);
        self.drawn.push(Json::List(figure));
        format!("<div id=\"f{}\"></div>\n", self.drawn.len() - 1)
    }

    /// Returns the elements at the end of the page: the data, and the script.
    pub fn finish(self) -> String {
        let data = Json::List(vec![Json::List(self.experiments), Json::List(self.drawn)]);
        format!(
            "<script type=\"application/json\" id=\"data\">{data}</script>\n<script>\n{}</script>\n",
            lean(SCRIPT, "//")
        )
    }
}
