//! Common spellings are understood, or refused with a message that names the right one.

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

/// Each line means the same as the other one.
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
        ("sheave serve p#v", "--nbd <ADDRESS>"),
    ] {
        let why = read(typed).expect_err(typed);
        assert!(why.contains(words), "{typed}\n{words}\n{why}");
    }
}

#[test]
fn what_is_behind_two_dashes_and_what_is_no_text_stays() {
    let line = words("sheave volume list -- --json --wait 20s");
    assert_eq!(rewrite(line.clone()), line);
    let odd = vec![OsString::from("sheave"), std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]), "--json".into()];
    assert_eq!(rewrite(odd.clone()), odd);
}

/// Examples can be copied: their lines are not wrapped, however narrow the terminal.
#[test]
fn examples_stay_whole_in_a_narrow_terminal() {
    let line = "  sheave volume export-diff 'pool.img#root@tue' --from @mon - | ssh host sheave volume import-diff - \
                'copy.img#root'";
    let page = read("sheave volume --help").expect("a page");
    assert!(page.lines().any(|found| found == line), "{page}");
    assert!(!page.contains('\u{a0}'), "blanks are blanks again");
}
