//! Parsing of configurations, and error messages with their line.

use super::*;

fn read_text(text: &str) -> Result<Plan, Failure> {
    let text = Text { path: Path::new("c.toml"), text: text.into() };
    plan(&text, text.file()?)
}

#[test]
fn all_of_a_configuration_is_read() {
    let plan = read_text(
        r#"
listen = ["unix:/run/a.sock", "tcp:127.0.0.1:10809"]
threads = 2
max_clients = 7

[[tls]]
listen = ["tcp:127.0.0.1:10809"]
certificate = "c.pem"
key = "k.pem"
client_ca = "ca.pem"
allow = ["backup"]

[[tls]]
mode = "allow"
certificate = "d.pem"
key = "l.pem"

[[tls]]
mode = "off"
certificate = "e.pem"
key = "m.pem"

[control]
path = "/run/c.sock"
mode = "0666"
admin_uids = [5]

[[pool]]
name = "main"
path = "a.img+b.img"

[[export]]
pool = "main"
volume = "root"

[[export]]
name = "scratch"
spec = "ram:size=1G"
read_only = true
limit = "iops=500,bps=10M,burst=1s"
"#,
    )
    .expect("it is right");
    assert_eq!((plan.listen.len(), plan.threads, plan.max_clients), (2, Some(2), 7));
    let [tcp, rest] = plan.tls.as_slice() else { panic!("{:?}", plan.tls) };
    assert_eq!(
        (&tcp.listen[..], tcp.required, &tcp.files.as_ref().expect("on").allow[..]),
        (&plan.listen[1..], true, &["backup".into()][..])
    );
    assert_eq!((rest.listen.len(), rest.required, &rest.files.as_ref().expect("on").client_ca), (0, false, &None));
    let control = plan.control.expect("it has one");
    assert_eq!((control.mode, control.admin_uids, control.wanted), (0o666, vec![5], true));
    assert_eq!(plan.exports[0].name, "root");
    assert_eq!(plan.exports[1].what, What::Device { spec: "ram:size=1G".into() });
    let limit = plan.exports[1].limit.expect("it has one");
    assert_eq!((limit.iops, limit.bps, plan.exports[0].limit), (Some(500), Some(10 << 20), None));
    assert!(plan.exports[1].read_only && !plan.exports[0].read_only);
}

#[test]
fn the_vhost_user_device_of_an_export_is_read() {
    let plan = read_text(
        "[[export]]\nname = \"a\"\nspec = \"s\"\nvhost_user = \"/run/a.sock\"\n\
         allow = [{ listen = \"unix:/run/a.sock\" }]\n\
         [[export]]\nname = \"b\"\nspec = \"s\"\nvhost_queues = 64\nvhost_in_order = true\n\
         vhost_user = { path = \"b.sock\", group = 7 }\n\
         [[export]]\nname = \"c\"\nspec = \"s\"\n",
    )
    .expect("it is right");
    let plain = VhostUserPlan { path: "/run/a.sock".into(), access: None, queues: None, in_order: false, passed: None };
    assert_eq!(plan.exports[0].vhost_user, Some(plain));
    let access = Some(SocketAccess { mode: 0o660, owner: None, group: Some(7) });
    let all = VhostUserPlan { path: "b.sock".into(), access, queues: Some(64), in_order: true, passed: None };
    assert_eq!(plan.exports[1].vhost_user, Some(all));
    assert_eq!(plan.exports[2].vhost_user, None);
    let other = "listen = [\"unix:n\"]\n[[export]]\nname = \"a\"\nspec = \"s\"\nvhost_user = \"/a\"\n\
                 [[export]]\nname = \"b\"\nspec = \"s\"\nallow = [{ listen = \"unix:/a\" }]\n";
    let refused = read_text(other).expect_err("that is the socket of another export").to_string();
    assert!(refused.contains("unix:/a is not among"), "{refused}");
}

#[test]
fn a_path_that_is_too_long_for_a_socket_is_named_with_its_line() {
    let text =
        |len: usize| format!("[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_user = \"/{}\"", "s".repeat(len - 1));
    assert!(read_text(&text(107)).is_ok());
    let refused = read_text(&text(108)).expect_err("too long").to_string();
    assert!(refused.contains("line 4: ") && refused.contains("107 bytes"), "{refused}");
}

#[test]
fn a_pool_is_named_by_its_uuid_and_looked_for() {
    let uuid = "7b3c0123456789abcdef00112233445f";
    let text = format!("[[pool]]\nname = \"a\"\nuuid = \"{uuid}\"\nsearch = [\"/srv\", \"x\"]\n");
    let plan = read_text(&text).expect("a plan");
    assert_eq!(plan.pools[0].place.to_string(), format!("uuid:{uuid}"));
    assert_eq!(plan.pools[0].place.search(), [Path::new("/srv"), Path::new("x")]);
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let wrong = [
        ("listen = []\nlisen = []", 2, "unknown field `lisen`"),
        ("listen = [\n  \"udp:1\"]", 2, "no address"),
        ("threads = 0", 1, "1 to 256"),
        ("\nmetrics = \"here\"", 2, "host and port"),
        ("\n[[pool]]\nname = \"a\"", 3, "either path or uuid"),
        ("[[pool]]\nname = \"a\"\npath = \"p\"\nuuid = \"7b3c0123456789abcdef00112233445f\"", 2, "either path or uuid"),
        ("[[pool]]\nname = \"a\"\nuuid = \"7b3c\"", 3, "'7b3c' is no UUID"),
        ("[[pool]]\nname = \"a\"\npath = \"p\"\nwritable = true", 4, "unknown field `writable`"),
        ("[[pool]]\nname = \"a\"\npath = \"p\"\n[[pool]]\nname = \"a\"\npath = \"q\"", 5, "already"),
        ("[[export]]\npool = \"b\"\nvolume = \"v\"", 2, "there is no pool 'b'"),
        ("[[export]]\nspec = \"ram:size=1M\"", 2, "wants a name"),
        ("[[export]]\nname = \"x\"\nspec = \"s\"\nvolume = \"v\"", 2, "either"),
        ("[[export]]\nname = \"x\"\nspec = \"s\"\n[[export]]\nname = \"x\"\nspec = \"s\"", 5, "already"),
        ("[control]\nmode = \"999\"", 2, "octal"),
        ("[[tls]]\ncertificate = \"c\"", 1, "missing field `key`"),
        ("[[tls]]\ncertificate = \"c\"\nkey = \"k\"\nmode = \"maybe\"", 4, "mode is"),
        (
            "listen = [\"unix:a\"]\n[[tls]]\ncertificate = \"c\"\nkey = \"k\"\nlisten = [\"unix:b\"]",
            5,
            "unix:b is not among",
        ),
        ("[[export]]\nname = \"x\"\nspec = \"s\"\nlimit = \"iops=0\"", 4, "'iops=0' is no limit"),
        ("threads = ", 1, ""),
        ("[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_queues = 2", 4, "vhost_queues is of an export with vhost_user"),
        ("[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_in_order = true", 4, "vhost_in_order is of an export"),
        ("[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_user = \"tcp:h:1\"", 4, "vhost_user: vhost-user passes memory"),
        ("[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_user = \"\"", 4, "named by a path"),
        ("[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_user = { path = \"/s\", mode = \"999\" }", 4, "octal"),
        (
            "[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_user = \"/s\"\nvhost_queues = 0",
            5,
            "vhost_queues are 1 to 64",
        ),
        (
            "[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_user = \"/s\"\nvhost_queues = 65",
            5,
            "vhost_queues are 1 to 64",
        ),
        (
            "[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_user = \"/s\"\n\
             [[export]]\nname = \"y\"\nspec = \"s\"\nvhost_user = { path = \"unix:/s\" }",
            8,
            "/s is used already, by the export 'x'",
        ),
        (
            "listen = [\"unix:s\"]\n[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_user = \"s\"",
            5,
            "s is used already, by listen of NBD",
        ),
        (
            "[control]\npath = \"/c\"\n[[export]]\nname = \"x\"\nspec = \"s\"\nvhost_user = \"/c\"",
            6,
            "/c is used already, by the control socket",
        ),
    ];
    for (text, line, words) in wrong {
        let said = read_text(text).expect_err(text).to_string();
        assert!(said.contains(&format!("c.toml, line {line}: ")) && said.contains(words), "{text}\n{said}");
    }
}
