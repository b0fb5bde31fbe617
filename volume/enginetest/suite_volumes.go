package enginetest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func testAbilities(t *trial) {
	b := t.Backend
	if b.Engine == nil {
		t.Fatal("the backend has no engine")
	}
	for _, ability := range []struct {
		name  string
		value any
	}{{"Snapshots", b.Snapshots}, {"Groups", b.Groups}, {"Deltas", b.Deltas}, {"Modifier", b.Modifier}, {"Health", b.Health}} {
		switch v := reflect.ValueOf(ability.value); {
		case !v.IsValid():
			t.Logf("not supported: %s", ability.name)
		case v.Kind() == reflect.Pointer && v.IsNil():
			t.Errorf("%s is a typed nil pointer: leave the field nil if the ability is not supported", ability.name)
		}
	}
	if !b.Clones {
		t.Log("not supported: Clones")
	}
	if b.Snapshots == nil && (b.Groups != nil || b.Deltas != nil) {
		t.Error("Groups and Deltas require Snapshots, which is nil")
	}
	if b.Modifier == nil && len(b.Mutable) > 0 {
		t.Errorf("parameters %q are mutable, but Modifier is nil", b.Mutable)
	}
	if b.Modifier != nil && (len(b.Mutable) == 0 || len(t.Changes) < 2) {
		t.Error("a Modifier needs mutable parameters, and the harness two different Changes")
	}
	for key := range t.Parameters {
		if !slices.Contains(b.Parameters, key) {
			t.Errorf("the harness uses parameter %s, the backend knows %q", key, b.Parameters)
		}
	}
}

func testCreate(t *trial) {
	req := t.request("one")
	v := t.create(req)
	t.same("Get after Create", t.filled(v.ID), v)
	t.isZero(v, volume.Range{Length: v.Size})
	t.sizeIs(v, v.Size)

	again, err := t.Backend.Engine.Create(t.ctx, req)
	if err != nil {
		t.Fatalf("the same Create again: %v", err)
	}
	t.same("the same Create again", again, v)

	wider := req
	wider.Size = volume.SizeRange{Required: t.Size / 2, Limit: t.Size * 2}
	if got, err := t.Backend.Engine.Create(t.ctx, wider); err != nil || got.ID != v.ID {
		t.Errorf("Create with a range that includes the size: got %s, %v; want %s", got.ID, err, v.ID)
	}
	t.checkNameConflict(req)

	ephemeral := t.request("ephemeral")
	ephemeral.Ephemeral = true
	if got := t.create(ephemeral); !got.Ephemeral {
		t.Errorf("ephemeral volume: got %+v", got)
	}
	anySize := t.request("any size")
	anySize.Size = volume.SizeRange{}
	t.create(anySize)
	exact := t.request("exact")
	exact.Size = volume.SizeRange{Required: t.Size, Limit: t.Size}
	t.create(exact)
	limited := t.request("limited")
	limited.Size = volume.SizeRange{Limit: t.Size}
	t.create(limited)
}

func (t *trial) checkNameConflict(taken volume.CreateRequest) {
	t.Helper()
	others := map[string]func(*volume.CreateRequest){
		"larger":          func(r *volume.CreateRequest) { r.Size = volume.SizeRange{Required: 2 * t.Size} },
		"smaller":         func(r *volume.CreateRequest) { r.Size = volume.SizeRange{Required: t.Size / 2, Limit: t.Size / 2} },
		"not ephemeral":   func(r *volume.CreateRequest) { r.Ephemeral = !r.Ephemeral },
		"another content": func(r *volume.CreateRequest) { r.Content = volume.Filesystem; r.FSType = t.someFSType() },
	}
	if t.someFSType() == "" || t.Content == volume.Filesystem {
		delete(others, "another content")
	}
	if t.Backend.Modifier != nil {
		others["other parameters"] = func(r *volume.CreateRequest) { r.Parameters = t.Changes[0] }
	}
	for name, change := range others {
		req := taken
		change(&req)
		_, err := t.Backend.Engine.Create(t.ctx, req)
		t.wantKind(err, "Create of a taken name, "+name, errs.Exists)
	}
}

func (t *trial) someFSType() string {
	if len(t.FSTypes) == 0 {
		return ""
	}
	return t.FSTypes[0]
}

func (t *trial) sizeIs(v volume.Volume, want int64) {
	t.Helper()
	d := t.open(v)
	defer closing(t.T, d)
	if size, err := d.Size(); err != nil || size != want {
		t.Errorf("the device of volume %s has %d bytes (%v), want %d", v.ID, size, err, want)
	}
}

func testCreateBadRequest(t *trial) {
	tooLarge := []errs.Kind{errs.OutOfRange, errs.Exhausted}
	badSize := []errs.Kind{errs.OutOfRange, errs.Invalid}
	invalid := []errs.Kind{errs.Invalid}
	cases := map[string]struct {
		change func(*volume.CreateRequest)
		want   []errs.Kind
	}{
		"no name":              {func(r *volume.CreateRequest) { r.Name = "" }, invalid},
		"no content":           {func(r *volume.CreateRequest) { r.Content = "" }, invalid},
		"blank content":        {func(r *volume.CreateRequest) { r.Content = volume.Blank }, invalid},
		"raw with file system": {func(r *volume.CreateRequest) { r.FSType = "ext4" }, invalid},
		"unknown file system":  {func(r *volume.CreateRequest) { r.Content, r.FSType = volume.Filesystem, "nosuchfs" }, invalid},
		"unknown parameter":    {func(r *volume.CreateRequest) { r.Parameters = map[string]string{"noSuchKey": "1"} }, invalid},
		"negative size":        {func(r *volume.CreateRequest) { r.Size.Required = -1 }, badSize},
		"negative limit":       {func(r *volume.CreateRequest) { r.Size = volume.SizeRange{Limit: -1} }, badSize},
		"limit below required": {func(r *volume.CreateRequest) { r.Size.Limit = r.Size.Required - 1 }, badSize},
		"limit too small":      {func(r *volume.CreateRequest) { r.Size = volume.SizeRange{Limit: 1} }, badSize},
		"an exbibyte":          {func(r *volume.CreateRequest) { r.Size.Required = 1 << 60 }, tooLarge},
		"largest number":       {func(r *volume.CreateRequest) { r.Size.Required = 1<<63 - 1 }, tooLarge},
		"source volume is missing": {
			func(r *volume.CreateRequest) { r.Source.Volume = volume.NewID("") },
			[]errs.Kind{errs.NotFound, errs.Unsupported, errs.Invalid},
		},
		"source snapshot is missing": {
			func(r *volume.CreateRequest) { r.Source.Snapshot = volume.NewSnapshotID("") },
			[]errs.Kind{errs.NotFound, errs.Unsupported, errs.Invalid},
		},
		"two sources": {
			func(r *volume.CreateRequest) {
				r.Source = volume.Source{Volume: volume.NewID(""), Snapshot: volume.NewSnapshotID("")}
			}, invalid,
		},
	}
	for name, c := range cases {
		req := t.request("bad " + name)
		c.change(&req)
		_, err := t.Backend.Engine.Create(t.ctx, req)
		t.wantKind(err, "Create, "+name, c.want...)
		if name == "unknown parameter" && err != nil && !strings.Contains(err.Error(), "noSuchKey") {
			t.Errorf("Create, %s: %q does not name the parameter", name, err)
		}
	}
	if left := t.list(); len(left) != 0 {
		t.Errorf("refused requests left volumes: %+v", left)
	}
}

// testNames creates volumes with names that must not become part of a path.
func testNames(t *trial) {
	seen := map[volume.ID]string{}
	for _, name := range []string{
		"plain", "Plain", "..", "../up", "/etc/passwd", "a/b", "a b", "-rf", "naïve-⚓", "new\nline", "%s", "*", strings.Repeat("n", 128),
	} {
		v := t.create(t.request(name))
		if other, taken := seen[v.ID]; taken {
			t.Errorf("names %q and %q got the same volume %s", name, other, v.ID)
		}
		seen[v.ID] = name
	}
	for _, v := range t.list() {
		if v.Name != seen[v.ID] {
			t.Errorf("volume %s is listed with name %q, want %q", v.ID, v.Name, seen[v.ID])
		}
	}
}

func testFilesystems(t *trial) {
	if len(t.FSTypes) == 0 {
		t.Log("not supported: file systems")
	}
	for _, fsType := range t.FSTypes {
		req := t.request("fs " + fsType)
		req.Content, req.FSType = volume.Filesystem, fsType
		req.Size = volume.SizeRange{} // minimum sizes differ
		v := t.create(req)
		if v.Content != volume.Filesystem || v.FSType != fsType {
			t.Errorf("asked for %s, got %s %s", fsType, v.Content, v.FSType)
		}
		again, err := t.Backend.Engine.Create(t.ctx, req)
		if err != nil || again.ID != v.ID {
			t.Errorf("the same Create of %s again: %s, %v", fsType, again.ID, err)
		}
	}
	if len(t.FSTypes) == 0 {
		return
	}
	req := t.request("fs of the engine's choice")
	req.Content, req.Size = volume.Filesystem, volume.SizeRange{}
	v := t.create(req)
	if again := t.create(req); again.ID != v.ID || again.FSType != v.FSType {
		t.Errorf("the same Create without a file system again: %+v, want %+v", again, v)
	}
}

func testDelete(t *trial) {
	v := t.create(t.request("short-lived"))
	t.remove(v.ID)
	t.gone(v.ID)
	t.remove(v.ID)
	recreated := t.create(t.request("short-lived"))
	if recreated.ID == v.ID {
		t.Errorf("a recreated volume has the old id %s", v.ID)
	}
	if t.Hold == nil {
		t.Log("not in the harness: Hold, so deletion of a volume in use is not tested")
		return
	}
	release := t.Hold(t.T, t.Backend, recreated)
	t.wantKind(t.Backend.Engine.Delete(t.ctx, recreated.ID), "Delete of a volume in use", errs.Precondition)
	if _, err := t.Backend.Engine.Get(t.ctx, recreated.ID); err != nil {
		t.Errorf("Get after a refused Delete: %v", err)
	}
	release()
	t.remove(recreated.ID)
	t.gone(recreated.ID)
}

// testForeignIDs uses ids of unknown objects, which must not become part of a
// path.
func testForeignIDs(t *trial) {
	keep := t.create(t.request("keep"))
	for _, id := range []string{
		"..", ".", "../../etc/passwd", "/etc/passwd", "volumes/../engine.db", string(keep.ID) + "/..", "a\x00b", " ", "-rf",
		"pool.json", strings.ToUpper(string(keep.ID)), string(keep.ID) + " ", strings.Repeat("x", 128), strings.Repeat("é", 600), string(volume.NewID("")),
	} {
		t.foreignVolume(volume.ID(id))
		if t.Backend.Snapshots != nil {
			t.foreignSnapshot(volume.SnapshotID(id))
		}
		if t.Backend.Groups != nil {
			_, err := t.Backend.Groups.GetGroup(t.ctx, volume.GroupID(id))
			t.wantKind(err, fmt.Sprintf("GetGroup(%.40q)", id), errs.NotFound)
			if err := t.Backend.Groups.DeleteGroup(t.ctx, volume.GroupID(id)); err != nil {
				t.Errorf("DeleteGroup(%.40q): %v, want success", id, err)
			}
		}
	}
	t.same("a volume among foreign ids", t.filled(keep.ID), keep)
}

func (t *trial) foreignVolume(id volume.ID) {
	t.Helper()
	b := t.Backend
	_, err := b.Engine.Get(t.ctx, id)
	t.wantKind(err, fmt.Sprintf("Get(%.40q)", id), errs.NotFound)
	_, err = b.Engine.Expand(t.ctx, id, volume.SizeRange{Required: 2 * t.Size})
	t.wantKind(err, fmt.Sprintf("Expand(%.40q)", id), errs.NotFound)
	if err := b.Engine.Delete(t.ctx, id); err != nil {
		t.Errorf("Delete(%.40q): %v, want success", id, err)
	}
	if b.Modifier != nil {
		_, err = b.Modifier.Modify(t.ctx, id, t.Changes[0])
		t.wantKind(err, fmt.Sprintf("Modify(%.40q)", id), errs.NotFound)
	}
	if b.Health != nil {
		_, err = b.Health.VolumeHealth(t.ctx, id)
		t.wantKind(err, fmt.Sprintf("VolumeHealth(%.40q)", id), errs.NotFound)
	}
	if b.Clones {
		_, err = b.Engine.Create(t.ctx, t.from("clone of nothing", volume.Source{Volume: id}))
		t.wantKind(err, fmt.Sprintf("Create from volume %.40q", id), errs.NotFound)
	}
}

func (t *trial) foreignSnapshot(id volume.SnapshotID) {
	t.Helper()
	b := t.Backend
	_, err := b.Snapshots.GetSnapshot(t.ctx, id)
	t.wantKind(err, fmt.Sprintf("GetSnapshot(%.40q)", id), errs.NotFound)
	if err := b.Snapshots.DeleteSnapshot(t.ctx, id); err != nil {
		t.Errorf("DeleteSnapshot(%.40q): %v, want success", id, err)
	}
	_, err = b.Snapshots.CreateSnapshot(t.ctx, volume.SnapshotRequest{Name: "of nothing", Source: volume.ID(id)})
	t.wantKind(err, fmt.Sprintf("CreateSnapshot of %.40q", id), errs.NotFound)
	_, err = b.Engine.Create(t.ctx, t.from("restore of nothing", volume.Source{Snapshot: id}))
	t.wantKind(err, fmt.Sprintf("Create from snapshot %.40q", id), errs.NotFound)
	if b.Deltas != nil {
		_, err = b.Deltas.Allocated(t.ctx, id, 0)
		t.wantKind(err, fmt.Sprintf("Allocated(%.40q)", id), errs.NotFound)
		_, err = b.Deltas.Delta(t.ctx, id, id, 0)
		t.wantKind(err, fmt.Sprintf("Delta(%.40q)", id), errs.NotFound)
	}
}
