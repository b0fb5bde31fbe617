package dputest

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (t *trial) gone(v volume, name string) {
	t.Helper()
	if err := t.remove(t.ctx, v.id, name); err != nil {
		t.Errorf("DeleteDevice(%q, %q): %v", v.id, name, err)
	}
	t.absent(v, name)
}

// testDelete deletes a device with and without its name, twice, and creates it
// again.
func testDelete(t *trial) {
	v, other := t.volume("delete"), t.volume("stays")
	stays := t.made(other)
	for _, named := range []bool{true, false, true} {
		name := t.made(v)
		if name == stays {
			t.Fatalf("volumes %q and %q both have the device %q", v.id, other.id, name)
		}
		asked := name
		if !named {
			asked = ""
		}
		for range 2 { // the second one is a no-op
			if err := t.remove(t.ctx, v.id, asked); err != nil {
				t.Errorf("DeleteDevice(%q, %q): %v", v.id, asked, err)
			}
			t.absent(v, name)
		}
		t.still(other, stays)
	}
}

// testDeleteAbsent: DeleteDevice of a missing device succeeds.
func testDeleteAbsent(t *trial) {
	v := t.volume("absent")
	for _, name := range []string{"", t.id + "-no-such-device"} {
		if err := t.remove(t.ctx, v.id, name); err != nil {
			t.Errorf("DeleteDevice(%q, %q) of a missing device: %v, want OK", v.id, name, err)
		}
	}
	t.absent(v, "")
}

// testDeleteMismatch: a volume and name that do not match are like a missing
// device.
func testDeleteMismatch(t *trial) {
	a, b := t.volume("a"), t.volume("b")
	nameA, nameB := t.made(a), t.made(b)
	never := t.id + "-never"
	for _, pair := range [][2]string{{a.id, nameB}, {b.id, nameA}, {a.id, t.id + "-no-such-device"}, {never, nameA}, {never, ""}, {a.id, "../" + nameB}} {
		if err := t.remove(t.ctx, pair[0], pair[1]); err != nil {
			t.Errorf("DeleteDevice(%q, %q), which matches no device: %v, want OK", pair[0], pair[1], err)
		}
		t.still(a, nameA)
		t.still(b, nameB)
	}
	// An empty volume_id can also be an error.
	for _, pair := range [][2]string{{"", ""}, {"", nameA}, {"..", nameA}, {"../..", ".."}, {"\x00", ""}} {
		_ = t.remove(t.ctx, pair[0], pair[1]) // its code is checked
		t.still(a, nameA)
		t.still(b, nameB)
	}
}

// testGet checks both forms of Filesystem; present checks the other
// modes.
func testGet(t *trial) {
	if !t.servesGet {
		t.Log("not checked, since GetDevice is not served")
		return
	}
	v := t.volume("get")
	v.modes = append(v.modes[:len(v.modes):len(v.modes)], unused(v.modes))
	name, err := t.create(t.ctx, v.request())
	if err != nil {
		t.Logf("access_modes %v are not accepted: %v", v.modes, err)
		v.modes = t.AccessModes
		name = t.made(v)
	}
	for range 2 {
		t.present(v, name)
	}
	t.gone(v, name)
	t.absent(v, name)
}

// testGetAbsent: NOT_FOUND also for a mismatch of volume and name.
func testGetAbsent(t *trial) {
	if !t.servesGet {
		t.Log("not checked, since GetDevice is not served")
		return
	}
	a, b := t.volume("geta"), t.volume("getb")
	nameA, nameB := t.made(a), t.made(b)
	never := t.id + "-never"
	for _, pair := range [][2]string{{never, never}, {never, nameA}, {a.id, nameB}, {b.id, nameA}, {a.id, never}} {
		if _, err := t.get(pair[0], pair[1]); status.Code(err) != codes.NotFound {
			t.Errorf("GetDevice(%q, %q), which matches no device: %v, want NOT_FOUND", pair[0], pair[1], err)
		}
	}
	for _, pair := range [][2]string{{"", ""}, {"", nameA}, {"../..", nameA}} {
		if _, err := t.get(pair[0], pair[1]); err == nil {
			t.Errorf("GetDevice(%q, %q) finds a device, want NOT_FOUND or FAILED_PRECONDITION", pair[0], pair[1])
		}
	}
}
