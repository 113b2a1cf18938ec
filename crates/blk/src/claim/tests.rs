//! Claims: one owner, or several readers, within this process, with any driver.

use super::*;
use crate::Device;
use crate::support::Puppet;

/// Makes a device of 1 MiB.
fn disk() -> Device {
    let mut puppet = Puppet::new();
    puppet.size = 1 << 20;
    puppet.device()
}

fn is_claimed(device: &Device, sharing: Sharing) -> bool {
    match device.claim(sharing) {
        Ok(_) => false,
        Err(DeviceError::Claimed { who, fix, .. }) => {
            assert!(who.contains(&format!("pid {}", std::process::id())) && fix.contains("close it"), "{who} {fix}");
            true
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn one_owner_or_several_readers() {
    let device = disk();
    let owner = device.claim(Sharing::Alone).expect("free");
    assert!(is_claimed(&device, Sharing::Alone) && is_claimed(&device.clone(), Sharing::WithReaders));
    drop(owner);
    let reader = device.claim(Sharing::WithReaders).expect("free again");
    let other = device.claim(Sharing::WithReaders).expect("readers share");
    assert!(is_claimed(&device, Sharing::Alone));
    drop(reader);
    assert!(is_claimed(&device, Sharing::Alone), "one reader is left");
    drop(other);
    assert!(!is_claimed(&device, Sharing::Alone));
}

#[test]
fn partitions_are_held_apart_and_against_the_whole() {
    let whole = disk();
    let first = crate::linear::partition("a", &whole, 0, 512 << 10).expect("a half");
    let second = crate::linear::partition("b", &whole, 512 << 10, 512 << 10).expect("the other half");
    let _first = first.claim(Sharing::Alone).expect("free");
    let _second = second.claim(Sharing::Alone).expect("free too");
    assert!(is_claimed(&whole, Sharing::Alone) && is_claimed(&first, Sharing::WithReaders));
}

#[test]
fn a_concatenation_is_held_wholly_or_not_at_all() {
    let (a, b) = (disk(), disk());
    let both = crate::linear::concatenate("ab", &[a.clone(), b.clone()]).expect("both");
    let held = b.claim(Sharing::Alone).expect("free");
    assert!(is_claimed(&both, Sharing::Alone));
    assert!(!is_claimed(&a, Sharing::Alone), "what was taken before the refusal was given back");
    drop(held);
    let _both = both.claim(Sharing::Alone).expect("free now");
    assert!(is_claimed(&a, Sharing::Alone) && is_claimed(&b, Sharing::Alone));
}
