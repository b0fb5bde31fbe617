package dpu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	poolID = "0b6f6c0e-8a55-4a3c-8f5e-2d1c9f0a7b11"
	rwo    = storagev1.AccessMode_ACCESS_MODE_RWO
)

// volume is a volume and the expected properties of its device.
type volume struct {
	id       string
	mode     request.Mode
	contexts request.Contexts

	subnqn, uuid string // of a namespace
	path         string // of a file or a directory
	image        string
	keys         int
}

func (v volume) modes() []storagev1.AccessMode { return []storagev1.AccessMode{rwo} }

func targetAddress() spdktest.Address {
	return spdktest.Address{Transport: "TCP", Host: "192.0.2.1", Port: "4420"}
}

func subnqn(name string) string { return "nqn.2016-06.io.spdk:" + name }

func namespaceUUID(name string, nsid int) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, fmt.Append(nil, name, "/", nsid)).String()
}

// target adds a subsystem with namespaces 1 to n to the network.
func (s *site) target(name string, n int) {
	sub := spdktest.Subsystem{NQN: subnqn(name), AnyHost: true, Addresses: []spdktest.Address{targetAddress()}}
	for i := range n {
		sub.Namespaces = append(sub.Namespaces, spdktest.Namespace{ID: uint32(i + 1), UUID: namespaceUUID(name, i+1)})
	}
	s.network.Put(sub)
}

// namespace is a volume on a namespace of a subsystem; more is added to its
// context.
func (s *site) namespace(id, name string, nsid int, more ...string) volume {
	a := targetAddress()
	c := map[string]string{
		"targetType": "tcp", "targetAddr": a.Host, "targetPort": a.Port, "nqn": subnqn(name),
		"nsId": strconv.Itoa(nsid), "uuid": namespaceUUID(name, nsid),
	}
	v := volume{id: id, mode: request.Block, subnqn: subnqn(name), uuid: namespaceUUID(name, nsid), contexts: request.Contexts{Volume: c}}
	for i := 0; i+1 < len(more); i += 2 {
		c[more[i]] = more[i+1]
	}
	return v
}

// keyed is a namespace with DH-HMAC-CHAP keys.
func (s *site) keyed(id, name string, nsid int) volume {
	s.t.Helper()
	for _, k := range []string{"host-" + id, "target-" + id} {
		testkit.Must(s.t, os.WriteFile(filepath.Join(s.keys(), k), []byte("DHHC-1:00:not a key, and never read here:\n"), 0o600))
	}
	v := s.namespace(id, name, nsid, "dhchapKey", "host-"+id, "dhchapCtrlrKey", "target-"+id)
	v.keys = 2
	return v
}

// file is a volume on a file of the pool.
func (s *site) file(id string) volume {
	s.t.Helper()
	path := filepath.Join(s.pool(), id+".img")
	f := testkit.Value(os.Create(path))(s.t)
	testkit.Must(s.t, f.Truncate(1<<20))
	testkit.Must(s.t, f.Close())
	return volume{id: id, mode: request.Block, path: path, contexts: located(access.File{Pool: poolID, Name: id + ".img"})}
}

// directory is a volume on a directory of the pool; a file in it contains the
// volume id.
func (s *site) directory(id string) volume {
	s.t.Helper()
	path := filepath.Join(s.pool(), id+".d")
	testkit.Must(s.t, os.MkdirAll(path, 0o755))
	testkit.Must(s.t, os.WriteFile(filepath.Join(path, "whose"), []byte(id), 0o600))
	return volume{id: id, mode: request.Filesystem, path: path, contexts: located(access.File{Pool: poolID, Name: id + ".d"})}
}

func located(a access.Access) request.Contexts { return request.Contexts{Volume: access.Encode(a)} }

// rbd is a volume on an image of the Ceph cluster.
func (s *site) rbd(id string) volume {
	s.network.PutImage(spdktest.Image{Pool: "rbd", Name: id, Size: 1 << 20})
	return volume{id: id, mode: request.Block, image: id, contexts: request.Contexts{Volume: map[string]string{
		"monitors": "192.0.2.5", "pool": "rbd", "imageName": id, "cephUser": "dpu",
	}}}
}

// usable checks that SNAP has the device of a volume with the volume's own
// storage, and that GetDevice reports it.
func (s *site) usable(v volume, device string) error {
	d, err := s.plugin.Get(s.ctx, v.id, device)
	if err != nil {
		return err
	}
	if d.Mode != v.mode || !slices.Equal(d.Modes, v.modes()) || !d.Contexts.Equal(v.contexts) {
		return fmt.Errorf("GetDevice of volume %s returned %+v", v.id, d)
	}
	if v.mode == request.Filesystem {
		return s.usableDirectory(v, device)
	}
	b, err := s.rpc.Bdev(s.ctx, device)
	switch {
	case err != nil:
		return fmt.Errorf("volume %s, device %s: %w", v.id, device, err)
	case b.Name != device:
		return fmt.Errorf("volume %s has device %s, which is bdev %s", v.id, device, b.Name)
	case v.uuid != "" && (!strings.EqualFold(b.UUID, v.uuid) || len(b.Driver.NVMe) == 0 || b.Driver.NVMe[0].Address.SubNQN != v.subnqn):
		return fmt.Errorf("volume %s is namespace %s of %s, and its device %s is %s: %+v", v.id, v.uuid, v.subnqn, device, b.UUID, b.Driver)
	case v.uuid == "" && v.path != "" && (b.Driver.AIO == nil || b.Driver.AIO.Filename != v.path):
		return fmt.Errorf("volume %s is file %s, and its device %s is %+v", v.id, v.path, device, b.Driver.AIO)
	case v.image != "" && (b.Driver.RBD == nil || b.Driver.RBD.Image != v.image):
		return fmt.Errorf("volume %s is image %s, and its device %s is %+v", v.id, v.image, device, b.Driver.RBD)
	}
	return nil
}

// usableDirectory checks the mount itself.
func (s *site) usableDirectory(v volume, device string) error {
	at := filepath.Join(s.volumes(), v.id)
	if f, err := s.rpc.Fsdev(s.ctx, device); err != nil && !isUnknown(err) {
		return fmt.Errorf("volume %s, device %s: %w", v.id, device, err)
	} else if err == nil && f.Driver.RootPath != at {
		return fmt.Errorf("volume %s is mounted at %s, and its device %s is %s", v.id, at, device, f.Driver.RootPath)
	}
	if _, mounted, err := mount.At(s.ctx, at); err != nil || !mounted {
		return fmt.Errorf("volume %s is not mounted at %s: %w", v.id, at, err)
	}
	whose, err := os.ReadFile(filepath.Join(at, "whose"))
	if err != nil || string(whose) != v.id {
		return fmt.Errorf("volume %s: its mount is that of %q, %w", v.id, whose, err)
	}
	return nil
}

// isUnknown: SNAP has no such method.
func isUnknown(err error) bool { return spdkIs(err, spdk.UnknownMethod) }
