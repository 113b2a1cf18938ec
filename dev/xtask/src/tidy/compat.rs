//! Checks `docs/reference/compat.md`. The page must name every opcode and every set-up flag of the kernel's ring,
//! supported or not. In its table of liburing's tests, a row with "same" must name an existing test of ours.
//! A row is a line of the table below the heading [`HEADING`]: programs, their result with Sheave, and our tests or the
//! reason. The names of tests are the code spans after the last colon of the last cell, or all code spans of a cell
//! without a colon.
//! without a colon.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::tree::Tree;

/// The page, and the heading above its table.
const PAGE: &str = "docs/reference/compat.md";
const HEADING: &str = "### liburing's own tests";

const OPCODES: &str = "NOP READV WRITEV FSYNC READ_FIXED WRITE_FIXED POLL_ADD POLL_REMOVE SYNC_FILE_RANGE SENDMSG \
    RECVMSG TIMEOUT TIMEOUT_REMOVE ACCEPT ASYNC_CANCEL LINK_TIMEOUT CONNECT FALLOCATE OPENAT CLOSE FILES_UPDATE STATX \
    READ WRITE FADVISE MADVISE SEND RECV OPENAT2 EPOLL_CTL SPLICE PROVIDE_BUFFERS REMOVE_BUFFERS TEE SHUTDOWN \
    RENAMEAT UNLINKAT MKDIRAT SYMLINKAT LINKAT MSG_RING FSETXATTR SETXATTR FGETXATTR GETXATTR SOCKET URING_CMD \
    SEND_ZC SENDMSG_ZC READ_MULTISHOT WAITID FUTEX_WAIT FUTEX_WAKE FUTEX_WAITV FIXED_FD_INSTALL FTRUNCATE BIND \
    LISTEN RECV_ZC EPOLL_WAIT READV_FIXED WRITEV_FIXED PIPE";

/// The set-up flags of Linux 6.18.
const SETUP_FLAGS: &str = "IOPOLL SQPOLL SQ_AFF CQSIZE CLAMP ATTACH_WQ R_DISABLED SUBMIT_ALL COOP_TASKRUN TASKRUN_FLAG \
    SQE128 CQE32 SINGLE_ISSUER DEFER_TASKRUN NO_MMAP REGISTERED_FD_ONLY NO_SQARRAY HYBRID_IOPOLL CQE_MIXED";

/// Finds opcodes and flags that the page does not name, rows without a test, and names of missing tests.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some((_, page)) = tree.pages.iter().find(|(path, _)| path == PAGE) else { return Vec::new() };
    let tests = tests(tree);
    let mut findings = unnamed(page);
    for (number, cells) in rows(page) {
        let [programs, here, by] = cells[..] else {
            findings.push(Finding::new(PAGE, number, "three cells: programs, what they find, by which test or why"));
            continue;
        };
        let named: Vec<&str> = named(by).collect();
        if named.is_empty() && here.starts_with("same") {
            findings.push(Finding::new(PAGE, number, format!("{programs}: \"same\", and no test says so")));
        }
        let missing = named.into_iter().filter(|name| !tests.contains(name));
        findings.extend(missing.map(|name| Finding::new(PAGE, number, format!("`{name}`: there is no such test"))));
    }
    findings
}

/// Finds opcodes and flags that the page does not name.
fn unnamed(page: &str) -> Vec<Finding> {
    let words: BTreeSet<&str> = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let kernels = OPCODES.split_whitespace().chain(SETUP_FLAGS.split_whitespace());
    let missing = kernels.filter(|name| !words.contains(name));
    missing.map(|name| Finding::new(PAGE, 1, format!("{name}: say whether it is there, and who wants it"))).collect()
}

/// Returns the rows of the table with their lines, each split into cells.
fn rows(page: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let below = page.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    let rows = below.take_while(|(_, line)| !line.starts_with('#')).filter(|(_, line)| line.starts_with("| `"));
    rows.map(|(index, line)| {
        let cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        (index + 1, cells)
    })
}

/// Returns the names of tests in a cell.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    let list = cell.rsplit_once(": ").map_or(cell, |(_, list)| list);
    let is_name = |span: &&str| {
        span.contains('_')
            && span.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    list.split('`').skip(1).step_by(2).filter(is_name)
}

/// Returns the names of all functions below a `#[test]`.
fn tests(tree: &Tree) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for source in &tree.sources {
        let mut behind = false;
        for line in source.text.lines().map(str::trim) {
            match line.strip_prefix("fn ").and_then(|rest| rest.split_once('(')) {
                Some((name, _)) if behind => {
                    names.insert(name);
                    behind = false;
                }
                _ => behind = line == "#[test]" || (behind && (line.starts_with("#[") || line.starts_with("//"))),
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &str =
        "//! Tests.\n#[test]\nfn a_nop_ends() {}\n\n#[test]\n#[ignore]\nfn slow_one() {}\nfn no_test() {}\n";

    fn findings(rows: &str) -> Vec<String> {
        let above = format!("# Compat: {OPCODES} {SETUP_FLAGS}\n\n| `x` | same | `gone_here` |\n\n");
        let page = format!("{above}{HEADING}\n\n| program | here | by |\n|---|---|---|\n{rows}");
        let tree = Tree::of(&[(PAGE, &page), ("crates/uring/tests/a.rs", TESTS)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tests_that_are_there_and_reasons_are_right() {
        let rows = "| `nop`, `nop-flags` | same | `a_nop_ends`, `slow_one` |\n\
                | `size` | differs | `cq_entries` may be less: `a_nop_ends` |\n\
                | `overflow` | differs | a full mailbox answers `-EOVERFLOW` |\n\
                | `sockets` | does not apply | absent |\n";
        assert_eq!(findings(rows), [""; 0]);
    }

    #[test]
    fn a_test_that_is_not_there_is_found() {
        let rows = "| `nop` | same | `a_nop_ends`, `a_nop_begins` |\n| `size` | differs | why: `no_test` |\n";
        assert_eq!(
            findings(rows),
            [
                "docs/reference/compat.md:9: `a_nop_begins`: there is no such test",
                "docs/reference/compat.md:10: `no_test`: there is no such test"
            ]
        );
    }

    #[test]
    fn a_claim_without_a_test_is_found() {
        let rows = "| `nop` | same; without flags | by and large |\n| `more` | same |\n";
        let found = findings(rows);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("no test says so") && found[1].contains("three cells"), "{found:?}");
    }

    #[test]
    fn an_opcode_or_a_flag_that_the_page_does_not_name_is_found() {
        let page =
            format!("# Compat\n\n{OPCODES}\n{SETUP_FLAGS}\n").replace(" PIPE", "").replace("NO_MMAP", "NO_MMAPS");
        let tree = Tree::of(&[(PAGE, &page)]);
        let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("PIPE:") && found[1].contains("NO_MMAP:"), "{found:?}");
    }
}
