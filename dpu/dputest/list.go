package dputest

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// all creates the maximum number of devices, and returns the expected entries;
// nil if ListDevices is not served.
func (t *trial) all(name string) ([]volume, []string) {
	t.Helper()
	if !t.servesList {
		t.Log("not checked, since ListDevices is not served")
		return nil, nil
	}
	volumes := t.volumes(name, t.Devices)
	var want []string
	for _, v := range volumes {
		want = append(want, v.id+" "+t.made(v))
	}
	slices.Sort(want)
	return volumes, want
}

// testList: each device is listed once until it is deleted.
func testList(t *trial) {
	volumes, want := t.all("list")
	if want == nil {
		return
	}
	for _, v := range volumes {
		if got := t.mine(t.list(0)); !slices.Equal(got, want) {
			t.Errorf("ListDevices has %q, want %q", got, want)
		}
		if err := t.remove(t.ctx, v.id, ""); err != nil {
			t.Errorf("DeleteDevice(%q): %v", v.id, err)
		}
		want = slices.DeleteFunc(want, func(entry string) bool { return strings.HasPrefix(entry, v.id+" ") })
	}
	if got := t.mine(t.list(0)); len(got) > 0 {
		t.Errorf("all devices are deleted, but ListDevices has %q", got)
	}
}

// testPages: pages of any size hold every device once while nothing changes,
// and can be requested again.
func testPages(t *trial) {
	_, want := t.all("pages")
	if want == nil {
		return
	}
	for max := 1; max <= len(want)+1; max++ {
		if got := t.mine(t.list(int32(max))); !slices.Equal(got, want) {
			t.Errorf("pages of %d hold %q together, want %q", max, got, want)
		}
	}
	first, err := t.page(2, "")
	if err != nil {
		t.Fatalf("ListDevices(2): %v", err)
	}
	if first.GetNextToken() == "" {
		t.Fatalf("ListDevices(2) returns no next_token, want one for %d devices", len(want))
	}
	var pages [2][]string
	for i := range pages {
		page, err := t.page(2, first.GetNextToken())
		if err != nil {
			t.Fatalf("ListDevices(2, %q), time %d: %v", first.GetNextToken(), i+1, err)
		}
		for _, e := range page.GetEntries() {
			pages[i] = append(pages[i], e.GetVolumeId())
		}
	}
	if !slices.Equal(pages[0], pages[1]) {
		t.Errorf("the second page is %q first, then %q", pages[0], pages[1])
	}
}

// testBadTokens: a foreign token is ABORTED.
func testBadTokens(t *trial) {
	_, want := t.all("tokens")
	if want == nil {
		return
	}
	for _, token := range []string{"dputest: no token of this plugin", "\x00", " ", "{", "../..", strings.Repeat("9", 4096)} {
		for _, max := range []int32{0, 2} {
			if reply, err := t.page(max, token); status.Code(err) != codes.Aborted {
				t.Errorf("ListDevices(%d, %.40q) with an invalid token: %d entries, %v, want ABORTED", max, token, len(reply.GetEntries()), err)
			}
		}
	}
	// The contract does not define negative max_entries; only the code is
	// checked.
	_, _ = t.page(-1, "")
	if got := t.mine(t.list(0)); !slices.Equal(got, want) {
		t.Errorf("ListDevices has %q, want %q", got, want)
	}
}

// testPagesWhileDeleting: the list is no snapshot: devices can be missed and
// tokens become invalid, but entries must be valid, and the list must end.
func testPagesWhileDeleting(t *trial) {
	volumes, want := t.all("changing")
	if want == nil {
		return
	}
	token, deleted, seen := "", map[string]bool{}, map[string]bool{}
	for n := 0; ; n++ {
		page, err := t.page(1, token)
		if status.Code(err) == codes.Aborted && n > 0 {
			break
		}
		if err != nil {
			t.Fatalf("ListDevices(1, %q): %v", token, err)
		}
		for _, e := range page.GetEntries() {
			if deleted[e.GetVolumeId()] {
				t.Errorf("ListDevices returns volume %q after its device was deleted", e.GetVolumeId())
			}
			if i := slices.IndexFunc(volumes, func(v volume) bool { return v.id == e.GetVolumeId() }); i >= 0 {
				t.gone(volumes[i], e.GetDeviceName())
				deleted[e.GetVolumeId()] = true
			}
		}
		if token = page.GetNextToken(); token == "" {
			break
		}
		if seen[token] {
			t.Fatalf("ListDevices never ends: token %q was returned before", token)
		}
		seen[token] = true
	}
}
