//! Rewrites common spellings of a command line into the form that is parsed.
//!
//! Handles only spellings with one possible meaning. Each rule has a row in the tests.
//!
//! * W1. An option with an optional value also takes the value from the next word, if that is a valid value.
//! * W2. `--json` may precede the command.
//! * W3. A size or time may have a blank before its unit.
//! * W4. `-v` and `version` alone print the version.
//! * W5. `volume resize` accepts its size as `--size`, like `create`.

use std::ffi::OsString;

use crate::args::value;

/// Units that may follow a number (W3).
const UNITS: [&str; 25] = [
    "B", "k", "K", "kB", "KB", "KiB", "M", "MB", "MiB", "G", "GB", "GiB", "T", "TB", "TiB", "P", "PB", "PiB", "ns",
    "us", "ms", "s", "m", "min", "h",
];

/// Returns true if `value` may follow `option` as the next word (W1).
fn takes(option: &str, value: &str) -> bool {
    match option {
        "--wait" => value::patience(value).is_ok(),
        "--poll" | "--fixed-buffers" | "--pin" => matches!(value, "on" | "off"),
        "--rescue" => matches!(value, "zero" | "skip"),
        _ => false,
    }
}

/// Rewrites a command line, whose first word is the program.
pub fn rewrite(args: Vec<OsString>) -> Vec<OsString> {
    let Some(words) = args.iter().map(|arg| arg.to_str()).collect::<Option<Vec<&str>>>() else { return args };
    let Some((program, words)) = words.split_first() else { return args };
    if matches!(words, ["-v" | "version"]) {
        return vec![(*program).into(), "--version".into()];
    }
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let (words, rest) = words.split_at(end);
    let is_resize = matches!(
        words.iter().filter(|word| !word.starts_with('-')).take(2).collect::<Vec<_>>()[..],
        [&("volume" | "volumes" | "vol"), &"resize"]
    );
    let (mut out, mut at, mut commands, mut last) = (vec![(*program).to_owned()], 0, 0, Vec::new());
    while let Some(word) = words.get(at) {
        let (next, after) = (words.get(at + 1), words.get(at + 2));
        at += 1;
        let in_two = |number: &str, unit: Option<&&str>| {
            let is_number = number.starts_with(|first: char| first.is_ascii_digit());
            let is_bare = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            unit.filter(|unit| is_number && is_bare && UNITS.contains(unit)).map(|unit| format!("{number}{unit}"))
        };
        if *word == "--json" && commands < 2 {
            last.push((*word).to_owned());
        } else if let Some(whole) = next.filter(|_| word.starts_with("--")).and_then(|next| in_two(next, after)) {
            at += 2;
            out.push(format!("{word}={whole}"));
        } else if let Some(next) = next.filter(|next| takes(word, next)) {
            at += 1;
            out.push(format!("{word}={next}"));
        } else if let (true, "--size", Some(next)) = (is_resize, *word, next) {
            at += 1;
            last.push((*next).to_owned());
        } else if let Some(size) = word.strip_prefix("--size=").filter(|_| is_resize) {
            last.push(size.to_owned());
        } else {
            commands += usize::from(!word.starts_with('-'));
            out.push((*word).to_owned());
        }
    }
    out.into_iter().chain(last).chain(rest.iter().map(|word| (*word).to_owned())).map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn read(line: &str) -> Result<String, String> {
        match args::parse(&rewrite(words(line))) {
            Ok(cli) => Ok(format!("{:?}", cli.command)),
            Err(page) if !page.use_stderr() => Ok(args::page(&page)),
            Err(refused) => Err(refused.render().to_string()),
        }
    }

    /// Both lines of each pair have the same meaning.
    #[test]
    fn first_tries_are_understood() {
        for (typed, meant) in [
            // W1.
            ("sheave volume snapshot p#v s --wait 20s", "sheave volume snapshot p#v s --wait=20s"),
            ("sheave volume --wait 20 snapshot p#v s", "sheave volume snapshot p#v s --wait=20s"),
            ("sheave pool info p --wait forever", "sheave pool info p --wait"),
            ("sheave volume snapshot --wait p#v s", "sheave volume snapshot p#v s --wait=forever"),
            ("sheave volume snapshot --wait 1m p#v 5m", "sheave volume snapshot p#v 5m --wait=1m"),
            (
                "sheave bench ram:size=1M --poll on --pin off --fixed-buffers off",
                "sheave bench ram:size=1M --poll --pin=off --fixed-buffers=off",
            ),
            ("sheave bench --poll ram:size=1M", "sheave bench ram:size=1M --poll=on"),
            ("sheave volume export p#v f --rescue skip", "sheave volume export p#v f --rescue=skip"),
            ("sheave volume export --rescue p#v f", "sheave volume export p#v f --rescue=zero"),
            // W2.
            ("sheave --json volume list p", "sheave volume list p --json"),
            ("sheave volume --json list p", "sheave volume list p --json"),
            ("sheave --json export list", "sheave export list --json"),
            ("sheave --json doctor", "sheave doctor --json"),
            // W3.
            ("sheave pool create p --size 64 MB", "sheave pool create p --size 64MB"),
            ("sheave pool create p --size 1.5 GiB", "sheave pool create p --size 1536M"),
            ("sheave volume create p#v --size 1 G", "sheave volume create p#v --size=1G"),
            ("sheave volume list p --wait 20 s", "sheave volume list p --wait=20s"),
            // W4.
            ("sheave -v", "sheave --version"),
            ("sheave version", "sheave -V"),
            // W5.
            ("sheave volume resize p#v --size 2G", "sheave volume resize p#v 2G"),
            ("sheave volume resize --size=+1G p#v", "sheave volume resize p#v +1G"),
            // Names of commands, and options in short.
            ("sheave volumes ls p", "sheave volume list p"),
            ("sheave vol show p#v", "sheave volume info p#v"),
            ("sheave volume rm p#v -y -f", "sheave volume delete p#v --yes --force"),
            ("sheave volume mv p#v w", "sheave volume rename p#v w"),
            ("sheave volume snap p#v s", "sheave volume snapshot p#v s"),
            ("sheave pools show p", "sheave pool info p"),
            ("sheave exports ls", "sheave export list"),
            ("sheave export rm x -f", "sheave export remove x --force"),
            ("sheave clients ls", "sheave client list"),
            ("sheave pool create p --size 1g -y", "sheave pool create p --size 1G --yes"),
            ("sheave help volume snapshot", "sheave volume snapshot -h"),
        ] {
            let meant_is = read(meant).unwrap_or_else(|why| panic!("{meant}\n{why}"));
            assert_eq!(read(typed).as_ref(), Ok(&meant_is), "{typed}\n{meant}");
        }
    }

    /// Each line is refused with this message.
    #[test]
    fn what_cannot_be_understood_is_refused_with_the_words_to_use() {
        for (typed, words) in [
            ("sheave volume clone p#v p#c", "write 'c' alone"),
            ("sheave volume rename p#v p#w", "write 'w' alone"),
            ("sheave volume info p", "write 'p#NAME'"),
            ("sheave pool info p#v", "this command wants a pool"),
            ("sheave volume lst p", "'list'"),
            ("sheave volum list p", "'volume'"),
            ("sheave pool create p --sise 1G", "'--size'"),
            ("sheave pool create p --size 1Q", "use k, M, G, T, P or E"),
            ("sheave volume list p --wait=soon", "100ns, 10us, 3ms, 1.5s or 2m"),
            ("sheave pool info", "<POOL>"),
        ] {
            let why = read(typed).expect_err(typed);
            assert!(why.contains(words), "{typed}\n{words}\n{why}");
        }
    }

    #[test]
    fn what_is_behind_two_dashes_and_what_is_no_text_stays() {
        let line = words("sheave volume list -- --json --wait 20s");
        assert_eq!(rewrite(line.clone()), line);
        let odd =
            vec![OsString::from("sheave"), std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]), "--json".into()];
        assert_eq!(rewrite(odd.clone()), odd);
    }

    /// Examples can be copied: their lines are not wrapped, however narrow the terminal.
    #[test]
    fn examples_stay_whole_in_a_narrow_terminal() {
        let line = "  sheave volume export-diff 'pool.img#root@tue' --from @mon - | ssh host sheave volume import-diff \
                    - 'copy.img#root'";
        let page = read("sheave volume --help").expect("a page");
        assert!(page.lines().any(|found| found == line), "{page}");
        assert!(!page.contains('\u{a0}'), "blanks are blanks again");
    }
}
