//! A report read again from the JSON that `--save` or `--json` wrote, so that its page and its tables can be made
//! without measuring anew.

use crate::LabError;
use crate::report::LabReport;
use crate::serial::for_ever;
use crate::table;

/// The report of a run.
pub fn read(text: String) -> Result<LabReport, LabError> {
    // The words of a report live for ever, and some of them are parts of its text.
    let mut report: LabReport = serde_json::from_str(for_ever(text))
        .map_err(|err| LabError::usage(format!("this is no report of a run: {err}")).fix("name a file of --save"))?;
    report.same_arms_twice = table::same_arms(&report);
    Ok(report)
}

/// A report as JSON.
pub fn text(report: &LabReport) -> Result<String, LabError> {
    let text = serde_json::to_string(report);
    text.map_err(|err| LabError::run(format!("the report does not fit into JSON: {err}")))
}

#[cfg(test)]
mod tests;
