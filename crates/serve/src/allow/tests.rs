//! Tests of networks and rules.

use super::*;

fn network(text: &str) -> Network {
    text.parse().expect(text)
}

fn at(address: &str) -> Who {
    let origin = Origin::Address(std::net::SocketAddr::new(address.parse().expect("an address"), 1));
    Who { origin, certificate: Vec::new(), at: Vec::new() }
}

fn of(uid: u32, gid: u32) -> Who {
    Who { origin: Origin::Process { pid: None, uid, gid }, certificate: Vec::new(), at: Vec::new() }
}

#[test]
fn a_network_has_its_addresses_and_no_others() {
    for (text, inside, outside) in [
        ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
        ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
        ("192.0.2.128/25", "192.0.2.128", "192.0.2.127"),
        ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
        // An IPv6 socket reports an IPv4 client like this.
        ("192.0.2.0/24", "::ffff:192.0.2.9", "::ffff:192.0.3.9"),
        ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
        ("::/0", "2001:db8::1", "192.0.2.1"),
        ("::1", "::1", "::2"),
    ] {
        let rule = Rule { address: Some(network(text)), ..Rule::default() };
        assert!(rule.admits(&at(inside)), "{text} {inside}");
        assert!(!rule.admits(&at(outside)), "{text} {outside}");
        assert!(!rule.admits(&of(0, 0)), "who comes by a unix socket has no address");
    }
}

#[test]
fn what_is_no_network_is_refused() {
    for text in ["", "here", "192.0.2.0/33", "192.0.2.0/-1", "192.0.2.0/", "2001:db8::/129", "192.0.2"] {
        assert!(text.parse::<Network>().expect_err(text).contains("is no address"), "{text}");
    }
    for text in ["192.0.2.7/24", "192.0.2.1/0", "2001:db8::1/64"] {
        assert!(text.parse::<Network>().expect_err(text).contains("behind its prefix"), "{text}");
    }
}

#[test]
fn all_of_a_rule_must_be_so_and_one_rule_is_enough() {
    let rule = |user, group| Rule { user, group, ..Rule::default() };
    let both = rule(Some(7), Some(8));
    assert!(both.admits(&of(7, 8)) && !both.admits(&of(7, 9)) && !both.admits(&of(9, 8)));
    assert!(!both.admits(&at("192.0.2.1")), "who comes by TCP is no user");
    let named = Rule { certificate: Some("backup".into()), ..Rule::default() };
    let with = |names: &[&str]| Who { certificate: names.iter().map(|name| (*name).into()).collect(), ..of(7, 8) };
    assert!(named.admits(&with(&["x", "backup"])) && !named.admits(&with(&["backup2"])) && !named.admits(&with(&[])));
    let listen: Address = "unix:/a".parse().expect("an address");
    let there = Rule { listen: Some(listen.clone()), ..Rule::default() };
    assert!(there.admits(&Who { at: vec![listen], ..of(7, 8) }) && !there.admits(&of(7, 8)));
    let only = Allow::Only(vec![both, named]);
    assert!(only.admits(&of(7, 8)) && only.admits(&Who { origin: Origin::Unknown, ..with(&["backup"]) }));
    assert!(!only.admits(&of(0, 0)), "root is a user as any other");
    assert!(Allow::All.admits(&of(9, 9)) && !Allow::Only(Vec::new()).admits(&of(0, 0)));
}
