//! Reads a report from the JSON of `--save` or `--json`, so that its page and tables can be made without a new
//! measurement.

use crate::LabError;
use crate::report::LabReport;
use crate::serial::for_ever;
use crate::table;

pub fn read(text: String) -> Result<LabReport, LabError> {
    // The text is leaked, because the static strings of a report are slices of it.
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
mod tests {
    use super::*;
    use crate::html::tests::report;

    #[test]
    fn a_report_that_is_read_again_makes_the_same_pages() {
        let mut report = report();
        let row = &mut report.experiments[0].headline[0];
        // NaN is null in JSON.
        let arm = row.arms[1].as_mut().expect("measured");
        (arm.value, arm.range) = (f64::NAN, [f64::NAN, 1e7]);
        row.control = vec![1.019, 0.981, 1.0, 1.0, 1.0, 1.0, 0.99, 1.01];
        report.same_arms_twice = table::same_arms(&report);
        assert!(report.same_arms_twice.tells);
        let json = text(&report).expect("JSON");
        let again = read(json).expect("a report");
        assert_eq!(again.experiments[0].headline[0].control, report.experiments[0].headline[0].control);
        assert_eq!(crate::html::page(&again), crate::html::page(&report));
        assert_eq!(crate::markdown::page(&again), crate::markdown::page(&report));
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let json = text(&report()).expect("JSON");
        for bad in ["", "{}", "[1]", &json[..json.len() / 2], &json.replace("bs=512", "bs=none")] {
            let error = read(bad.to_owned()).expect_err(bad);
            assert!(error.usage && error.cause.contains("no report of a run"), "{error}");
        }
    }
}
