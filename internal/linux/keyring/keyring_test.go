package keyring

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestFind(t *testing.T) {
	const keys = `0a1b2c3d I--Q---     3 perm 3f030000     0     0 keyring   _ses: 1
1d4c4e5f I------     1 perm 1f0f0000     0     0 keyring   .nvme2: empty
2d4c4e5f I------     1 perm 1f0f0000     0     0 keyring   .nvme: 1
3d4c4e5f I------     1 perm 1f0f0000     0     0 psk       .nvme: 32
short
`
	if got, err := find(keys, ".nvme"); err != nil || got != 0x2d4c4e5f {
		t.Errorf("got %x, %v", int(got), err)
	}
	if _, err := find(keys, ".fs-verity"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("got %v, want not found", err)
	}
}

// TestKeys uses a keyring of this process.
func TestKeys(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	serial, err := unix.AddKey("keyring", "cleat-test", nil, unix.KEY_SPEC_PROCESS_KEYRING)
	testkit.Must(t, err)
	r := Keyring(serial)
	defer func() {
		_, err := unix.KeyctlInt(unix.KEYCTL_UNLINK, serial, unix.KEY_SPEC_PROCESS_KEYRING, 0, 0)
		testkit.Must(t, err)
	}()
	const name, longer = "host subsystem", "host subsystem2"
	first := testkit.Value(r.Put("user", name, []byte("a")))(t)
	if again := testkit.Value(r.Put("user", name, []byte("a")))(t); again != first {
		t.Errorf("the same key has the serial numbers %d and %d", first, again)
	}
	other := testkit.Value(r.Put("user", longer, []byte("b")))(t)
	if payload := testkit.Value(readAll(other))(t); string(payload) != "b" {
		t.Errorf("payload %q", payload)
	}
	testkit.Must(t, r.Remove("user", name), r.Remove("user", name))
	if _, err := r.lookup("user", name); errs.KindOf(err) != errs.NotFound {
		t.Errorf("after its removal: %v, want not found", err)
	}
	if found := testkit.Value(r.lookup("user", longer))(t); found != other {
		t.Errorf("found %d, want %d", found, other)
	}
	if _, err := Keyring(-12345).Put("user", name, []byte("a")); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOKEY) {
		t.Errorf("in a keyring that does not exist: %v", err)
	}
}
