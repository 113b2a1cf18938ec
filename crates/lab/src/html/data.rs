//! What the script of the page draws, as compact JSON, so that a long run fits into a page that one can keep.
//!
//! Owns the arrays' place in the page, and the script itself (`page.js`, which says what each array holds).

use super::json::Json;
use super::look::Look;
use super::words::lean;

/// Draws.
const SCRIPT: &str = include_str!("page.js");

/// All that the script draws on a page.
#[derive(Debug, Default)]
pub struct Figures {
    experiments: Vec<Json>,
    drawn: Vec<Json>,
}

impl Figures {
    /// What is drawn from now on is of this experiment.
    pub fn begin(&mut self, id: &str, looks: &[Look], options: &str) {
        self.experiments.push(Json::List(vec![id.into(), Json::list(looks.iter().map(Look::json)), options.into()]));
    }

    /// The place where the script draws; `kind` is one of those at its end.
    pub fn draw(&mut self, kind: &str, parts: impl IntoIterator<Item = Json>) -> String {
        let of = self.experiments.len().saturating_sub(1);
        let mut figure = vec![kind.into(), Json::Number(of as f64)];
        figure.extend(parts);
        self.drawn.push(Json::List(figure));
        format!("<div id=\"f{}\"></div>\n", self.drawn.len() - 1)
    }

    /// The elements that stand at the end of the page.
    pub fn finish(self) -> String {
        let data = Json::List(vec![Json::List(self.experiments), Json::List(self.drawn)]);
        format!(
            "<script type=\"application/json\" id=\"data\">{data}</script>\n<script>\n{}</script>\n",
            lean(SCRIPT, "//")
        )
    }
}
