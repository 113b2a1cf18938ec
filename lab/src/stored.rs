//! Reads a report from the JSON of `--save` or `--json`, so that its page and tables can be made without a new
//! measurement.

use crate::LabError;
use crate::report::LabReport;
use crate::serial::for_ever;
use crate::table;

pub fn read(text: String) -> Result<LabReport, LabError> {
    // Leaked, because the static strings of a report are slices of its text.
    let mut report: LabReport = serde_json::from_str(for_ever(text))
        .map_err(|err| LabError::usage(format!("this is no report of a run: {err}")).fix("name a file of --save"))?;
    report.same_arms_twice = table::same_arms(&report);
    Ok(report)
}

/// Formats a report as JSON.
pub fn text(report: &LabReport) -> Result<String, LabError> {
    let text = serde_json::to_string(report);
    text.map_err(|err| LabError::run(format!("the report does not fit into JSON: {err}")))
}

#[cfg(test)]
mod tests;
