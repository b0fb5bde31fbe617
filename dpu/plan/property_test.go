package plan_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

var (
	words   = rapid.StringMatching(`[a-z0-9][a-z0-9.-]{0,20}[a-z0-9]`)
	nqns    = rapid.StringMatching(`nqn\.20[0-9]{2}-[0-9]{2}\.[!-~]{1,40}`)
	someNQN = rapid.OneOf(nqns, rapid.SampledFrom([]string{nqn, host, other})) // so that they meet
	someOf  = rapid.SampledFrom([]string{"", "a", "b"})
	volumes = rapid.OneOf(rapid.SampledFrom([]string{"a", "b"}), rapid.StringMatching(`[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?`))
	equal   = cmp.Options{cmpopts.EquateComparable(netip.AddrPort{})}
)

func addresses(t *rapid.T, least int) []netip.AddrPort {
	all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, rapid.Byte().Draw(t, "host")}), uint16(rapid.IntRange(0, 3).Draw(t, "port")))
	}), least, 3).Draw(t, "addresses")
	if len(all) == 0 && rapid.Bool().Draw(t, "nil") {
		return nil
	}
	return all
}

func drawNVMe(t *rapid.T) access.NVMe {
	return access.NVMe{
		Transport: rapid.SampledFrom([]string{"tcp", "rdma"}).Draw(t, "transport"), Paths: addresses(t, 1), NQN: someNQN.Draw(t, "nqn"),
		NSID: rapid.Uint32().Draw(t, "nsid"), HostNQN: rapid.OneOf(rapid.Just(""), someNQN).Draw(t, "hostnqn"),
		IOQueues: rapid.IntRange(0, 9).Draw(t, "queues"), HeaderDigest: rapid.Bool().Draw(t, "hdgst"), DataDigest: rapid.Bool().Draw(t, "ddgst"),
		DHChapKey: someOf.Draw(t, "dhchap"), DHChapCtrlrKey: someOf.Draw(t, "dhchap of the target"), TLSKey: someOf.Draw(t, "tls"),
	}
}

func drawCeph(t *rapid.T) access.Ceph {
	c := access.Ceph{ClusterID: someOf.Draw(t, "cluster"), User: someOf.Draw(t, "user"), Key: someOf.Draw(t, "key")}
	least := 0
	if c.ClusterID == "" {
		least = 1
	}
	c.Monitors = addresses(t, least)
	return c
}

func drawFile(t *rapid.T) access.File {
	return access.File{Pool: rapid.SampledFrom([]string{pool, uuid}).Draw(t, "pool"), Name: rapid.OneOf(someOf, rapid.StringMatching(`[a-z]( of pool )?[a-z/]{0,3}`)).Draw(t, "file")}
}

func draw(t *rapid.T) request.Create {
	q := request.Create{Volume: volumes.Draw(t, "volume"), Mode: request.Block}
	if rapid.Bool().Draw(t, "read-only") {
		q.Modes = []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_ROX}
	}
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		q.Access = drawNVMe(t)
	case 1:
		q.Access = access.RBD{Ceph: drawCeph(t), Pool: words.Draw(t, "pool"), Namespace: someOf.Draw(t, "namespace"), Image: words.Draw(t, "image")}
	case 2:
		q.Access = drawFile(t)
	case 3:
		q.Mode, q.Access = request.Filesystem, drawFile(t)
	case 4:
		q.Mode, q.Access = request.Filesystem, access.CephFS{Ceph: drawCeph(t), FS: someOf.Draw(t, "fs"), Path: "/x"}
	default:
		options := rapid.SampledFrom([][]string{nil, {}, {"ro"}, {"hard", "ro"}}).Draw(t, "options")
		q.Mode, q.Access = request.Filesystem, access.NFS{Server: "s", Share: "/x", SubDir: someOf.Draw(t, "subdir"), Options: options}
	}
	return q
}

func mustMake(t *rapid.T, s plan.Settings, q request.Create) plan.Device {
	return testkit.Value(s.Make(q))(t)
}

var name = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// TestPlans: plans are deterministic; names are valid for SPDK and directories;
// each object fits its kind, is unique, follows what it needs, and survives
// encoding, with nil and empty lists.
func TestPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := draw(t)
		d := mustMake(t, settings(), q)
		if diff := cmp.Diff(d, mustMake(t, settings(), q), equal); diff != "" {
			t.Fatalf("the same again is another plan:\n%s", diff)
		}
		made := map[plan.ID]bool{}
		for _, o := range d.Objects {
			most := 190
			switch o.Kind {
			case plan.AIOFsdev:
				most = 17
			case plan.Mount:
				most = 253 // a directory, not a name in SPDK
			}
			if len(o.Name) > most || !name.MatchString(o.Name) || !o.Fits() || made[o.ID] {
				t.Fatalf("object %+v", o)
			}
			for _, needed := range needs(o) {
				if !made[needed] {
					t.Fatalf("%s is made before %s", o.ID, needed)
				}
			}
			made[o.ID] = true
			data := testkit.Value(json.Marshal(o))(t)
			var back plan.Object
			testkit.Must(t, json.Unmarshal(data, &back))
			if diff := cmp.Diff(o, back, equal); diff != "" {
				t.Fatalf("from its record (-made +read):\n%s", diff)
			}
			if diff := cmp.Diff(o, o.Clone(), equal); diff != "" {
				t.Fatalf("its clone:\n%s", diff)
			}
		}
		if len(d.Name) > 190 {
			t.Fatalf("device %q", d.Name)
		}
	})
}

func needs(o plan.Object) []plan.ID {
	var all []plan.ID
	switch {
	case o.Controller != nil:
		for _, k := range []string{o.Controller.DHChap, o.Controller.DHChapCtrlr, o.Controller.TLS} {
			if k != "" {
				all = append(all, plan.ID{Kind: plan.Key, Name: k})
			}
		}
	case o.RBD != nil:
		all = append(all, plan.ID{Kind: plan.RBDCluster, Name: o.RBD.Cluster})
	case o.Fsdev != nil:
		all = append(all, plan.ID{Kind: plan.Mount, Name: o.Fsdev.Mount})
	}
	return all
}

// TestControllers: a controller's name depends on subsystem and host only,
// since SPDK accepts one controller per pair.
func TestControllers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := func(label string) (string, [2]string) {
			a := drawNVMe(t)
			s := settings()
			s.Plugin = words.Draw(t, label)
			d := mustMake(t, s, request.Create{Volume: volumes.Draw(t, label), Mode: request.Block, Access: a})
			c := d.Shown()
			if a.HostNQN == "" {
				a.HostNQN = host
			}
			if c.Controller.SubNQN != a.NQN || c.Controller.HostNQN != a.HostNQN {
				t.Fatalf("%+v of %+v", c.Controller, a)
			}
			return c.Name, [2]string{a.NQN, a.HostNQN}
		}
		nameA, a := of("a")
		nameB, b := of("b")
		if (nameA == nameB) != (a == b) {
			t.Fatalf("%q of %q and %q of %q", nameA, a, nameB, b)
		}
	})
}

// TestNamesOfVolumes: two volumes or plugins share no device except of a
// subsystem.
func TestNamesOfVolumes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, s, u := draw(t), settings(), settings()
		r := q
		r.Volume = volumes.Draw(t, "another volume")
		u.Plugin = rapid.SampledFrom([]string{s.Plugin, "another.example.com"}).Draw(t, "plugin")
		a, b := mustMake(t, s, q).Shown(), mustMake(t, u, r).Shown()
		if a.Kind != plan.Controller && (a.Name == b.Name) != (q.Volume == r.Volume && s.Plugin == u.Plugin) {
			t.Fatalf("%s of %q and %s of %q", a.ID, q.Volume, b.ID, r.Volume)
		}
	})
}

// TestExclusive: exclusive resources are equal exactly for the same file or
// image, for any Ceph user.
func TestExclusive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, r := draw(t), draw(t)
		if rapid.Bool().Draw(t, "the same storage") {
			r = q
			r.Volume = "another"
			if a, is := q.Access.(access.RBD); is {
				a.User, a.Key = someOf.Draw(t, "user"), someOf.Draw(t, "key")
				if rapid.Bool().Draw(t, "monitors in another order") {
					a.Monitors = slices.Clone(a.Monitors)
					slices.Reverse(a.Monitors)
				}
				r.Access = a
			}
		}
		a, b := mustMake(t, settings(), q), mustMake(t, settings(), r)
		for _, o := range a.Objects[:len(a.Objects)-1] {
			if o.Exclusive() != "" {
				t.Fatalf("%s takes %q, but is shared", o.ID, o.Exclusive())
			}
		}
		takenA, takenB := a.Shown().Exclusive(), b.Shown().Exclusive()
		if (takenA != "") != (storage(q) != "") || (takenA != "" && takenA == takenB) != (storage(q) != "" && storage(q) == storage(r)) {
			t.Fatalf("%q for %+v, %q for %+v", takenA, q.Access, takenB, r.Access)
		}
	})
}

func storage(q request.Create) string {
	switch a := q.Access.(type) {
	case access.File:
		if q.Mode == request.Block {
			return fmt.Sprintf("%q", []string{a.Pool, a.Name})
		}
	case access.RBD:
		monitors := ""
		if a.ClusterID == "" {
			var all []string
			for _, m := range a.Monitors {
				all = append(all, m.String())
			}
			slices.Sort(all)
			monitors = fmt.Sprint(all)
		}
		return fmt.Sprintf("%q", []string{a.ClusterID, monitors, a.Pool, a.Namespace, a.Image})
	}
	return ""
}
