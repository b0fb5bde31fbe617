package table_test

import (
	"cmp"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/test/testkit"
)

// model is a table in plain maps.
type model struct {
	devices map[string]table.Device
	objects map[plan.ID]table.Object
}

func (m model) users(id plan.ID) []string {
	var all []string
	for _, d := range m.devices {
		if slices.Contains(d.Objects, id) {
			all = append(all, d.Volume)
		}
	}
	slices.Sort(all)
	return all
}

func (m model) takes(o table.Object) bool {
	for id, other := range m.objects {
		if id != o.ID && o.Exclusive() != "" && other.Exclusive() == o.Exclusive() {
			return true
		}
	}
	return false
}

func (m model) hasName(d table.Device) bool {
	for id, other := range m.devices {
		if d.Name != "" && id != d.Volume && other.Name == d.Name {
			return true
		}
	}
	return false
}

func (m model) refuses(d table.Device, objects []table.Object) bool {
	missing := slices.ContainsFunc(d.Objects, func(id plan.ID) bool {
		_, known := m.objects[id]
		return !known && !slices.ContainsFunc(objects, func(o table.Object) bool { return o.ID == id })
	})
	return missing || m.hasName(d) || slices.ContainsFunc(objects, m.takes)
}

func (m model) sorted(keep func(plan.ID) bool) []table.Object {
	var all []table.Object
	for _, o := range m.objects {
		if keep(o.ID) {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b table.Object) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all
}

var same = gocmp.Options{cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty()}

func (m model) check(t *rapid.T, r *table.Table) {
	want := slices.SortedFunc(maps.Values(m.devices), func(a, b table.Device) int { return strings.Compare(a.Volume, b.Volume) })
	got, more := r.List("", 1000, all)
	if !reflect.DeepEqual(want, got) || more {
		t.Fatalf("List (more: %t):\n%s", more, gocmp.Diff(want, got, same))
	}
	phases := map[table.Phase]int{table.Creating: 0, table.Ready: 0, table.Removing: 0}
	for id, d := range m.devices {
		phases[d.Phase]++
		if one, ok := r.Device(id); !ok || !reflect.DeepEqual(d, one) {
			t.Fatalf("Device(%s) = %+v, %t", id, one, ok)
		}
	}
	if counted, objects := r.Count(); !maps.Equal(counted, phases) || objects != len(m.objects) {
		t.Fatalf("Count = %v, %d, want %v, %d", counted, objects, phases, len(m.objects))
	}
	if want, got := m.sorted(func(plan.ID) bool { return true }), r.Objects(); !reflect.DeepEqual(want, got) {
		t.Fatalf("Objects:\n%s", gocmp.Diff(want, got, same))
	}
	if want, got := m.sorted(func(id plan.ID) bool { return len(m.users(id)) == 0 }), r.Unused(); !reflect.DeepEqual(want, got) {
		t.Fatalf("Unused:\n%s", gocmp.Diff(want, got, same))
	}
	for id, o := range m.objects {
		if one, ok := r.Object(id); !ok || !reflect.DeepEqual(o, one) {
			t.Fatalf("Object(%s) = %+v, %t", id, one, ok)
		}
		if !slices.Equal(r.Users(id), m.users(id)) {
			t.Fatalf("Users(%s) = %q, want %q", id, r.Users(id), m.users(id))
		}
	}
	if _, ok := r.Device("pvc-none"); ok {
		t.Fatal("unexpected device")
	}
}

func all(table.Device) bool { return true }

// TestModel: after any sequence of operations, the table equals plain maps,
// also when reopened.
func TestModel(t *testing.T) {
	volumes := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	names := rapid.SampledFrom([]string{"", "n1", "n2", "n3"})
	objects := rapid.Custom(func(t *rapid.T) table.Object {
		name := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")
		if rapid.Bool().Draw(t, "shared") {
			return controller(name)
		}
		return aio(name, rapid.SampledFrom([]string{"f", "g", "h"}).Draw(t, "file"))
	})
	rapid.Check(t, func(rt *rapid.T) {
		dir := testkit.Value(os.MkdirTemp(t.TempDir(), ""))(rt)
		r := newRig(t, dir)
		defer func() { r.close() }()
		m := model{map[string]table.Device{}, map[plan.ID]table.Object{}}
		outcome := func(what string, err error, refused bool) bool {
			if (err != nil) != refused {
				rt.Fatalf("%s: %v, to be refused: %t", what, err, refused)
			}
			return err == nil
		}
		rt.Repeat(map[string]func(*rapid.T){
			"Put": func(rt *rapid.T) {
				put := rapid.SliceOfNDistinct(objects, 0, 2, func(o table.Object) plan.ID { return o.ID }).Draw(rt, "objects")
				if len(put) == 2 && put[0].Exclusive() != "" && put[0].Exclusive() == put[1].Exclusive() {
					put = put[:1]
				}
				used := slices.Concat(put, rapid.SliceOfN(objects, 0, 1).Draw(rt, "uses too"))
				d := device(volumes.Draw(rt, "volume"), names.Draw(rt, "device name"), used...)
				if d.Name != "" && len(used) > 0 {
					d.Phase = rapid.SampledFrom([]table.Phase{table.Creating, table.Ready, table.Removing}).Draw(rt, "phase")
				}
				if outcome("Put", r.Put(t.Context(), d, put...), m.refuses(d, put)) {
					m.devices[d.Volume] = d
					for _, o := range put {
						m.objects[o.ID] = o
					}
				}
			},
			"PutObject": func(rt *rapid.T) {
				o := objects.Draw(rt, "object")
				if outcome("PutObject", r.PutObject(t.Context(), o), m.takes(o)) {
					m.objects[o.ID] = o
				}
			},
			"Drop": func(rt *rapid.T) {
				id := rapid.OneOf(rapid.Just(""), volumes).Draw(rt, "volume")
				var ids []plan.ID
				needed := false
				for _, o := range rapid.SliceOfN(objects, 0, 2).Draw(rt, "objects") {
					ids = append(ids, o.ID)
					needed = needed || slices.ContainsFunc(m.users(o.ID), func(v string) bool { return v != id })
				}
				if outcome("Drop", r.Drop(t.Context(), id, ids...), needed) {
					delete(m.devices, id)
					for _, o := range ids {
						delete(m.objects, o)
					}
				}
			},
			"reopen": func(*rapid.T) {
				r.close()
				r.open()
			},
			"": func(rt *rapid.T) { m.check(rt, r.Table) },
		})
	})
}

// TestPages: pages together are what keep accepts, in order, except what is
// deleted meanwhile.
func TestPages(t *testing.T) {
	r := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-d]{1,3}`), 0, 8, rapid.ID).Draw(rt, "volumes")
		for _, id := range ids {
			r.put(device(id, ""))
		}
		defer func() {
			for _, id := range ids {
				testkit.Must(rt, r.Drop(t.Context(), id))
			}
		}()
		hidden := rapid.SampledFrom([]string{"-", "a", "b"}).Draw(rt, "hidden")
		keep := func(d table.Device) bool { return !strings.HasPrefix(d.Volume, hidden) }
		size := rapid.IntRange(1, 4).Draw(rt, "page")
		want := slices.DeleteFunc(slices.Sorted(slices.Values(ids)), func(id string) bool { return strings.HasPrefix(id, hidden) })
		deleting := rapid.Bool().Draw(rt, "delete what was seen")
		var got []string
		for after, more := "", true; more; {
			var page []table.Device
			page, more = r.List(after, size, keep)
			if len(page) > size || more && len(page) < size {
				rt.Fatalf("a page of %d has %d, more: %t", size, len(page), more)
			}
			for _, d := range page {
				got = append(got, d.Volume)
				after = d.Volume
			}
			if deleting && len(page) > 0 { // also the one before the next page
				testkit.Must(rt, r.Drop(t.Context(), after))
			}
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("pages of %d hold %q, want %q", size, got, want)
		}
	})
}
