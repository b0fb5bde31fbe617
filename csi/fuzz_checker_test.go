package csi

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// checker is a backend and a ledger that check their arguments.
type checker struct {
	volume.Engine // not called
	t             *testing.T
	sharedFS      string // of the deployment
}

func (c checker) id(id string) {
	if id == "" || len(id) > maxString {
		c.t.Errorf("id %q", id)
	}
}

func (c checker) name(name string) {
	if name == "" || len(name) > maxString || strings.ContainsFunc(name, isBanned) {
		c.t.Errorf("name %q", name)
	}
}

func (c checker) size(s volume.SizeRange) {
	if s.Required < 0 || s.Limit < 0 || s.Limit != 0 && s.Limit < s.Required {
		c.t.Errorf("size %+v", s)
	}
}

func (c checker) parameters(m map[string]string) {
	for key := range m {
		if strings.HasPrefix(key, reservedPrefix) {
			c.t.Errorf("parameter %q reached the engine", key)
		}
	}
}

func (c checker) content(content volume.Content, fsType string) {
	if c.sharedFS != "" && (content == volume.Raw || fsType != "") {
		c.t.Errorf("content %q, file system %q of volumes in a shared one", content, fsType)
	}
	if fsType != "" && (content == volume.Raw || !slices.Contains(fsTypes, fsType)) {
		c.t.Errorf("content %q, file system %q", content, fsType)
	}
}

func (c checker) object(id volume.ID) (volume.Volume, error) {
	c.id(string(id))
	return volume.Volume{ID: id, Content: volume.Filesystem, FSType: cmp.Or(c.sharedFS, "ext4"), Locator: access.File{Pool: poolUUID, Name: "volumes/v"}}, nil
}

func (c checker) Create(_ context.Context, r volume.CreateRequest) (volume.Volume, error) {
	c.name(r.Name)
	c.size(r.Size)
	c.parameters(r.Parameters)
	c.content(r.Content, r.FSType)
	if r.Content != volume.Raw && r.Content != volume.Filesystem || r.Source.Volume != "" && r.Source.Snapshot != "" || r.Parameters == nil {
		c.t.Errorf("%+v", r)
	}
	return c.object("v")
}

func (c checker) Get(_ context.Context, id volume.ID) (volume.Volume, error) { return c.object(id) }

func (c checker) Delete(_ context.Context, id volume.ID) error {
	c.id(string(id))
	return nil
}

func (c checker) List(_ context.Context, after volume.ID, limit int) ([]volume.Volume, error) {
	if limit < 1 || after != "" && volume.CheckID(string(after)) != nil {
		c.t.Errorf("list %d after %q", limit, after)
	}
	return nil, nil
}

func (c checker) Expand(_ context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	if c.size(size); size == (volume.SizeRange{}) {
		c.t.Error("no size")
	}
	return c.object(id)
}

func (c checker) Capacity(_ context.Context, q volume.CapacityQuery) (volume.Capacity, error) {
	c.parameters(q.Parameters)
	c.content(q.Content, q.FSType)
	return volume.Capacity{}, nil
}

func (c checker) Modify(_ context.Context, id volume.ID, parameters map[string]string) (volume.Volume, error) {
	c.parameters(parameters)
	return c.object(id)
}

func (c checker) VolumeHealth(_ context.Context, id volume.ID) ([]volume.Condition, error) {
	c.id(string(id))
	return nil, nil
}

func (c checker) StorageHealth(context.Context) ([]volume.Condition, error) { return nil, nil }

func (c checker) CreateSnapshot(_ context.Context, r volume.SnapshotRequest) (volume.Snapshot, error) {
	c.name(r.Name)
	c.id(string(r.Source))
	c.parameters(r.Parameters)
	return volume.Snapshot{}, nil
}

func (c checker) DeleteSnapshot(_ context.Context, id volume.SnapshotID) error {
	c.id(string(id))
	return nil
}

func (c checker) GetSnapshot(_ context.Context, id volume.SnapshotID) (volume.Snapshot, error) {
	c.id(string(id))
	return volume.Snapshot{ID: id}, nil
}

func (c checker) ListSnapshots(_ context.Context, q volume.SnapshotQuery) ([]volume.Snapshot, error) {
	_, err := c.List(context.Background(), volume.ID(q.After), q.Limit)
	return nil, err
}

func (c checker) CreateGroup(_ context.Context, r volume.GroupRequest) (volume.Group, error) {
	c.name(r.Name)
	c.parameters(r.Parameters)
	if len(r.Sources) == 0 || !slices.IsSorted(r.Sources) {
		c.t.Errorf("%+v", r)
	}
	return volume.Group{}, nil
}

func (c checker) DeleteGroup(_ context.Context, id volume.GroupID) error {
	c.id(string(id))
	return nil
}

func (c checker) GetGroup(_ context.Context, id volume.GroupID) (volume.Group, error) {
	c.id(string(id))
	return volume.Group{ID: id}, nil
}

func (c checker) blocks(from int64, ids ...volume.SnapshotID) (volume.BlockMap, error) {
	for _, id := range ids {
		c.id(string(id))
	}
	if from < 0 {
		c.t.Errorf("offset %d", from)
	}
	return volume.BlockMap{Size: from, Ranges: func(func(volume.Range, error) bool) {}}, nil
}

func (c checker) Allocated(_ context.Context, id volume.SnapshotID, from int64) (volume.BlockMap, error) {
	return c.blocks(from, id)
}

func (c checker) Delta(_ context.Context, base, target volume.SnapshotID, from int64) (volume.BlockMap, error) {
	return c.blocks(from, base, target)
}

func (c checker) Enter(context.Context, volume.Client) (leave func(), err error) {
	return func() {}, nil
}

func (c checker) Grant(_ context.Context, g volume.Grant) (volume.Grant, error) {
	mode, kind, _ := strings.Cut(g.Mode, "/")
	if c.sharedFS == "" && g.Client.Node != "n" || c.sharedFS != "" && kind == "block" || spec.VolumeCapability_AccessMode_Mode_value[mode] == 0 || kind != "block" && kind != "mount" {
		c.t.Errorf("%+v", g)
	}
	return g, nil
}

func (c checker) Revoke(_ context.Context, id volume.ID, node string, _ func(context.Context) error) error {
	if c.id(string(id)); len(node) > maxNodeID {
		c.t.Errorf("node %q", node)
	}
	return nil
}

func (c checker) Of(context.Context, volume.ID) ([]volume.Grant, error) { return nil, nil }

func (c checker) All(context.Context, volume.ID, int) ([]volume.Grant, error) { return nil, nil }

func (c checker) Clients(context.Context) ([]volume.Client, error) { return nil, nil }

func (c checker) Client(context.Context, string) (volume.Client, bool, error) {
	return volume.Client{}, false, nil
}

func (c checker) ByNode(context.Context, string) ([]volume.Grant, error) { return nil, nil }

// everything is announced, without an engine.
func everything() *Controller { return checkingController(nil, nil, "") }

func checkingController(t *testing.T, o *op.Operations, sharedFS string) *Controller {
	c := checker{t: t, sharedFS: sharedFS}
	d := Deployment{
		Services: Services{Controller: true}, ControllerPublish: true, Topology: map[string]string{"a.b/zone": "z"}, Nodes: []string{"n"},
	}
	if sharedFS != "" {
		d.Topology, d.Nodes, d.MultiNode, d.SharedFS = nil, nil, true, sharedFS
	}
	return NewController(ControllerConfig{
		Backend: volume.Backend{
			Engine: c, Snapshots: c, Groups: c, Deltas: c, Modifier: c, Health: c, Clones: true, Mutable: []string{"provisioning"},
		},
		Deployment: d, Operations: o, Grants: c,
	})
}
