package dputest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
)

func (t *trial) made(v volume) string {
	t.Helper()
	name, err := t.create(t.ctx, v.request())
	if err != nil {
		t.Fatalf("CreateDevice(%q, %s, %v): %v", v.id, v.mode, v.modes, err)
	}
	t.present(v, name)
	return name
}

// still checks that a device is unchanged, and CreateDevice idempotent.
func (t *trial) still(v volume, name string) {
	t.Helper()
	t.present(v, name)
	if again, err := t.create(t.ctx, v.request()); err != nil || again != name {
		t.Errorf("CreateDevice(%q) again: %q, %v, want the existing device %q", v.id, again, err, name)
	}
}

// present uses all served calls.
func (t *trial) present(v volume, name string) {
	t.Helper()
	if t.servesGet {
		reply, err := t.get(v.id, name)
		if err != nil {
			t.Errorf("GetDevice(%q, %q) of an existing device: %v", v.id, name, err)
		} else if problem := differs(reply, v); problem != "" {
			t.Errorf("GetDevice(%q, %q): %s", v.id, name, problem)
		}
	}
	if t.servesList {
		if names := t.listed(v.id); !slices.Equal(names, []string{name}) {
			t.Errorf("ListDevices has devices %q of volume %q, want %q once", names, v.id, name)
		}
	}
}

// differs compares GetDevice with the CreateDevice.
func differs(reply *storagev1.GetDeviceResponse, v volume) string {
	got, want := slices.Sorted(slices.Values(reply.GetAccessModes())), slices.Sorted(slices.Values(v.modes))
	if !slices.Equal(got, want) {
		return fmt.Sprintf("access_modes %v, created with %v", got, want)
	}
	if mode(reply.GetVolumeMode()) != mode(v.mode) {
		return fmt.Sprintf("volume_mode %q, created with %q", reply.GetVolumeMode(), v.mode)
	}
	return ""
}

// mode resolves the default.
func mode(of string) string {
	if of == "" {
		return filesystem
	}
	return of
}

// absent checks that a volume has no device. name is that of the former device,
// or empty: GetDevice without a name is undefined, but must not find a device.
func (t *trial) absent(v volume, name string) {
	t.Helper()
	if problem := t.trace(v, name); problem != "" {
		t.Error(problem)
	}
}

// trace describes where a deleted device still shows up.
func (t *trial) trace(v volume, name string) string {
	t.Helper()
	if t.servesGet {
		if name != "" {
			if _, err := t.get(v.id, name); status.Code(err) != codes.NotFound {
				return fmt.Sprintf("GetDevice(%q, %q) of a missing device: %v, want NOT_FOUND", v.id, name, err)
			}
		}
		if _, err := t.get(v.id, ""); err == nil {
			return fmt.Sprintf("GetDevice(%q, \"\") returns a device, want an error", v.id)
		}
	}
	if t.servesList {
		if names := t.listed(v.id); len(names) > 0 {
			return fmt.Sprintf("ListDevices has devices %q of volume %q, want no devices", names, v.id)
		}
	}
	return ""
}

// requireStaysAbsent checks repeatedly, since cancelled work can still complete.
func (t *trial) requireStaysAbsent(volumes ...volume) {
	t.Helper()
	ticker := time.NewTicker(t.Patience / 10)
	defer ticker.Stop()
	for range 5 {
		for _, v := range volumes {
			t.absent(v, "")
		}
		if t.Failed() {
			return
		}
		<-ticker.C
	}
}

func (t *trial) listed(volumeID string) []string {
	t.Helper()
	var names []string
	for _, e := range t.list(0) {
		if e.GetVolumeId() == volumeID {
			names = append(names, e.GetDeviceName())
		}
	}
	return names
}

func (t *trial) list(max int32) []*storagev1.ListDevicesResponse_Entry {
	t.Helper()
	var all []*storagev1.ListDevicesResponse_Entry
	seen, token := map[string]bool{}, ""
	for {
		reply, err := t.page(max, token)
		if err != nil {
			t.Fatalf("ListDevices(%d, %q): %v", max, token, err)
		}
		all = append(all, reply.GetEntries()...)
		token = reply.GetNextToken()
		if token == "" {
			return all
		}
		if seen[token] {
			t.Fatalf("ListDevices with max_entries %d never ends: token %q was returned before", max, token)
		}
		seen[token] = true
	}
}

// mine returns the entries of this run.
func (t *trial) mine(entries []*storagev1.ListDevicesResponse_Entry) []string {
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.GetVolumeId(), t.id) {
			out = append(out, e.GetVolumeId()+" "+e.GetDeviceName())
		}
	}
	slices.Sort(out)
	return out
}
