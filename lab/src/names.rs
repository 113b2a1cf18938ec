//! Short forms of names for readers.

/// Returns the text with a capital first letter.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Returns the name of a function without the modules in front of a type. Without a type, only the last module remains.
pub fn short_name(name: &str) -> String {
    let mut short = String::new();
    let mut path = String::new();
    for c in name.chars() {
        if c.is_alphanumeric() || c == '_' || c == ':' {
            path.push(c);
        } else {
            short.push_str(last_of(&path));
            path.clear();
            short.push(c);
        }
    }
    short.push_str(last_of(&path));
    short
}

/// Returns the end of a path such as `crate::module::Type::function`, from its first type on. Without a type, returns
/// the end from the last module on.
fn last_of(path: &str) -> &str {
    let (mut from, mut starts) = (0, vec![0]);
    while let Some(at) = path[from..].find("::") {
        from += at + 2;
        starts.push(from);
    }
    let is_type = |start: &&usize| path[**start..].starts_with(|c: char| c.is_uppercase());
    let second_last = starts.len().checked_sub(2).and_then(|at| starts.get(at));
    let start = starts.iter().find(is_type).or(second_last).copied().unwrap_or_default();
    // A path that begins after `>` has no module of its own.
    if path.starts_with("::") { path } else { &path[start..] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_functions_are_told_without_their_modules() {
        let told = [
            ("sheave_iomap::dio::submission::issue_one", "submission::issue_one"),
            (
                "sheave_blk::hctx::complete::<impl sheave_blk::hctx::Hctx>::end_requests",
                "complete::<impl Hctx>::end_requests",
            ),
            ("<sheave_lab::exp::stores::PerCpu as sheave_blk::bio_set::BioStore>::get", "<PerCpu as BioStore>::get"),
            ("sheave_uring::ring::inner::Inner::take_sqes", "Inner::take_sqes"),
            ("hdrhistogram::Histogram<T>::value_at_quantile", "Histogram<T>::value_at_quantile"),
            ("clock_gettime@@GLIBC_2.17", "clock_gettime@@GLIBC_2.17"),
            ("_int_malloc", "_int_malloc"),
            ("", ""),
        ];
        for (name, short) in told {
            assert_eq!(short_name(name), short);
        }
    }
}
