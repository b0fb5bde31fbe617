// Package networkfence is a backend of takeovers that lets a CSI driver fence, by
// NetworkFence objects of CSI-Addons.
//
// CSI-Addons has no owners of fences: an unfence lifts an address that others
// fenced too, and its manager repeats every object when it starts. A result has no
// generation that it is for. So each operation is one new object, whose spec is
// never changed: its result is that of its spec if its generation is 1. A finalizer
// keeps the objects of a remediation until their fences are lifted, since a
// deleted NetworkFence lifts nothing.
package networkfence

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// Object is what decisions need of a NetworkFence of the driver.
type Object struct {
	Name    string
	Version string // resourceVersion
	Number  int    // of the remediation's objects at this backend, from 1; 0: of others
	Cleat   bool   // of another remediation
	// Foreign: it has a name of this remediation, and not its label.
	Foreign bool
	Fenced  bool // spec.fenceState: Fenced, or Unfenced
	Blocks  []netip.Prefix
	// Changed says how the spec differs from what was created; only with Number.
	Changed  string
	Deleting bool
	// Void: cleat deleted it. One that a user deletes is as fenced as before.
	Void bool
	// Released: its remediation does not need the fence any more. What is only void is
	// replaced, and pods can have moved because of it.
	Released bool
	Pending  bool // CSI-Addons has its finalizer: it can work for the object
	Result   string
	Message  string
	Evidence string // what identifies the object and its class
}

const succeeded = "Succeeded"

// ChangeKind is a kind of Change.
type ChangeKind int

// Kinds of changes.
const (
	Create  ChangeKind = iota // Number, Fenced, Blocks and Marker
	Release                   // Name: mark it as released
	Delete                    // Name: make it void and delete it; our finalizer keeps it
	Drop                      // Name: delete it and our finalizer, if it has the Version
)

// Change is one write.
type Change struct {
	Kind    ChangeKind
	Name    string
	Version string
	Number  int
	Fenced  bool
	Blocks  []netip.Prefix
	// Marker: the object does nothing, and shows others that the blocks are unfenced.
	Marker bool
}

// State is what the objects say of the fences of a remediation.
type State struct {
	Recorded []netip.Addr // of all of its objects
	Held     bool         // all of the addresses
	// Lifted: of the addresses and the recorded ones no fence of the remediation is
	// left. The objects prove it, and Forget removes them.
	Lifted   bool
	Evidence string
	Missing  string // why they are not held, or not lifted yet
	// What an administrator has to do with objects of others before a fence holds, or
	// before it is lifted.
	FenceBlocked, UnfenceBlocked string
}

// Read says whether addresses are fenced for the remediation.
func Read(all []Object, addresses []netip.Addr) State {
	s := State{Recorded: recorded(all, nil), UnfenceBlocked: blocker(all, addresses)}
	changes, err := UnfenceChanges(all, addresses)
	s.Lifted = len(changes) == 0 && err == nil
	if text := foreign(all); text != "" {
		s.FenceBlocked, s.UnfenceBlocked = text, text
		return s
	}
	if text, isCleat := contrary(all, addresses); isCleat {
		s.Missing = text
		return s
	} else if text != "" {
		s.FenceBlocked = text
		return s
	}
	newest, found := alive(all, func(o Object) bool { return o.isUnfence() || o.isProof(addresses) })
	switch {
	case !found:
		s.Missing = pending(all)
	case newest.Result != succeeded:
		s.Missing = unfinished(newest)
	case newest.Fenced:
		s.Held, s.Evidence = true, newest.Evidence
	}
	return s
}

// FenceChanges returns the next writes of a fence of addresses, none if its result
// is waited for. The error is what prevents the fence; the writes are made all the same.
func FenceChanges(all []Object, addresses []netip.Addr) ([]Change, error) {
	if text := foreign(all); text != "" {
		return nil, errs.Errorf(errs.Precondition, "%s", text)
	}
	text, _ := contrary(all, addresses)
	var changes []Change
	for _, o := range all { // what can be lifted, or can lift, proves nothing later
		if o.Number > 0 && !o.isDeleted() && (o.Void || !o.Deleting && (text != "" || o.Changed != "" || !o.Fenced)) {
			changes = append(changes, Change{Kind: Delete, Name: o.Name})
		}
	}
	if text != "" {
		return changes, errs.Errorf(errs.Precondition, "%s", text)
	}
	if _, found := alive(all, func(o Object) bool { return o.isProof(addresses) }); found || len(changes) > 0 {
		return changes, nil
	}
	if text := pending(all); text != "" {
		return nil, errs.Errorf(errs.Unavailable, "%s", text)
	}
	return create(all, true, addresses)
}

// UnfenceChanges returns the next writes that lift all fences of the remediation, of
// the addresses too; none and no error if they are lifted. They are marked as released
// first: another remediation that finds one, or an unfence, fences again when they are
// gone. So what another one fences is left to it. Then all objects are deleted, and one
// unfences the rest, which is deleted too. ForgetChanges removes them. The error is what
// prevents the unfence; the writes are made all the same.
func UnfenceChanges(all []Object, addresses []netip.Addr) ([]Change, error) {
	if text := foreign(all); text != "" {
		return nil, errs.Errorf(errs.Precondition, "%s", text)
	}
	var changes []Change
	for _, o := range all {
		if o.Number > 0 && o.Fenced && !o.Released {
			changes = append(changes, Change{Kind: Release, Name: o.Name})
		}
	}
	if text := blocker(all, addresses); text != "" {
		return changes, errs.Errorf(errs.Precondition, "%s", text)
	}
	if len(changes) > 0 {
		return changes, nil
	}
	var newest Object
	for _, o := range all {
		if o.Number > 0 && !o.isDeleted() && (!o.isUnfence() || o.Result == succeeded || o.Deleting || o.Void) {
			changes = append(changes, Change{Kind: Delete, Name: o.Name})
		}
		if o.Number > newest.Number {
			newest = o
		}
	}
	if len(changes) > 0 {
		return changes, nil
	}
	text := pending(all)
	if text == "" && newest.isUnfence() && newest.Number > 0 && !newest.isDeleted() {
		text = unfinished(newest)
	}
	if text == "" {
		text = unnoticed(all)
	}
	left := toUnfence(all, addresses)
	isProved := newest.isUnfence() && newest.Result == succeeded && newest.covers(left)
	switch {
	case text != "":
		return nil, errs.Errorf(errs.Unavailable, "%s", text)
	case isProved || len(left) == 0:
		return nil, nil
	case newest.Number == 0: // removed by others, or never created
		return []Change{{Kind: Create, Number: 1, Blocks: blocksOf(left), Marker: true}}, nil
	}
	return create(all, false, left)
}

// ForgetChanges removes the objects of a remediation whose fences are lifted, those
// that prove it last.
func ForgetChanges(all []Object, addresses []netip.Addr) (changes []Change, err error) {
	if more, err := UnfenceChanges(all, addresses); err != nil || len(more) > 0 {
		return nil, err
	}
	own := slices.DeleteFunc(slices.Clone(all), func(o Object) bool { return o.Number == 0 })
	slices.SortFunc(own, func(a, b Object) int { return cmp.Compare(a.Number, b.Number) })
	for _, o := range own {
		changes = append(changes, Change{Kind: Drop, Name: o.Name, Version: o.Version})
	}
	return changes, nil
}

// toUnfence returns the recorded addresses, and the given ones, without those that
// another remediation fences: that one lifts them with its own release.
func toUnfence(all []Object, addresses []netip.Addr) (left []netip.Addr) {
	for _, a := range recorded(all, addresses) {
		if !slices.ContainsFunc(all, func(o Object) bool { return o.isOtherFence() && o.covers([]netip.Addr{a}) }) {
			left = append(left, a)
		}
	}
	return left
}

// recorded adds the addresses of the remediation's objects to others.
func recorded(all []Object, others []netip.Addr) []netip.Addr {
	addresses := slices.Clone(others)
	for _, o := range all {
		if o.Number > 0 || o.Foreign {
			for _, b := range o.Blocks {
				addresses = append(addresses, b.Addr())
			}
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}

// unnoticed returns a fence of another remediation that an unfence of this one can have
// lifted after its result. That one replaces it when it finds our objects, and they stay
// until then.
func unnoticed(all []Object) string {
	for _, o := range all {
		if !o.isOtherFence() || o.Deleting || o.Void {
			continue
		}
		for _, own := range all {
			if own.Number > 0 && (!own.Fenced || own.Changed != "") && slices.ContainsFunc(o.Blocks, own.overlapsBlock) {
				return fmt.Sprintf("NetworkFence %s of another remediation can be lifted by this release, which waits until it is replaced", o.Name)
			}
		}
	}
	return ""
}

// create stops when others change every object, as another release of CSI-Addons
// could, and not only a user.
func create(all []Object, fenced bool, addresses []netip.Addr) ([]Change, error) {
	const most = 20
	number := next(all)
	if number > most {
		return nil, errs.Errorf(errs.Precondition, "%d NetworkFences of this remediation were deleted or changed by others, so that their results prove nothing: find out what changes them", most)
	}
	return []Change{{Kind: Create, Number: number, Fenced: fenced, Blocks: blocksOf(addresses)}}, nil
}

func (o Object) isUsers() bool { return o.Number == 0 && !o.Foreign && !o.Cleat }

func (o Object) isUnfence() bool { return !o.Fenced && o.Changed == "" }

func (o Object) isDeleted() bool { return o.Deleting && o.Void }

func (o Object) isProof(addresses []netip.Addr) bool {
	return o.Fenced && o.Changed == "" && o.covers(addresses)
}

func (o Object) covers(addresses []netip.Addr) bool {
	return !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !slices.Contains(o.Blocks, single(a)) })
}

// isOtherFence: another remediation fences by the object, or has, and needs the fence.
func (o Object) isOtherFence() bool { return o.Number == 0 && o.Cleat && o.Fenced && !o.Released }

// alive returns the newest object of the remediation that is not deleted.
func alive(all []Object, is func(Object) bool) (newest Object, found bool) {
	for _, o := range all {
		if o.Number > newest.Number && !o.Deleting && !o.Void && is(o) {
			newest, found = o, true
		}
	}
	return newest, found
}

// contrary returns what can lift a fence of the addresses: an object that unfences
// them, which the manager repeats, or that of a remediation which is released.
func contrary(all []Object, addresses []netip.Addr) (text string, isCleat bool) {
	for _, o := range all {
		if o.Number == 0 && (!o.Fenced || o.Cleat && o.Released) && o.overlaps(addresses) {
			if o.Cleat {
				return fmt.Sprintf("NetworkFence %s of another remediation is being unfenced", o.Name), true
			}
			return fmt.Sprintf("NetworkFence %s of someone else unfences an address of the node, and CSI-Addons repeats that when it restarts: delete the object", o.Name), false
		}
	}
	return "", false
}

// blocker returns an object of a user that fences what an unfence of this remediation
// would lift.
func blocker(all []Object, addresses []netip.Addr) string {
	mine := recorded(all, addresses)
	for _, o := range all {
		if o.isUsers() && o.Fenced && !o.Deleting && o.overlaps(mine) {
			return fmt.Sprintf("NetworkFence %s, which is not of this remediation, fences an address of the node too, and CSI-Addons would lift that fence: delete the object, or unfence by it and delete it", o.Name)
		}
	}
	return ""
}

func foreign(all []Object) string {
	for _, o := range all {
		if o.Foreign {
			return fmt.Sprintf("NetworkFence %s has the name of one of this remediation, and not its label: restore the label, or unfence by the object and delete it", o.Name)
		}
	}
	return ""
}

// pending names a deleted object whose operation can still run.
func pending(all []Object) string {
	for _, o := range all {
		if o.Number > 0 && o.Deleting && o.Pending {
			return fmt.Sprintf("NetworkFence %s is deleted, and CSI-Addons can still work for it", o.Name)
		}
	}
	return ""
}

func next(all []Object) int {
	most := 0
	for _, o := range all {
		most = max(most, o.Number)
	}
	return most + 1
}

func unfinished(o Object) string {
	if o.Result == "" {
		return fmt.Sprintf("NetworkFence %s has no result: CSI-Addons, or the driver's sidecar that holds its Lease, has not handled it", o.Name)
	}
	return fmt.Sprintf("NetworkFence %s: %s: %s", o.Name, o.Result, strings.TrimSpace(o.Message))
}

func (o Object) overlapsBlock(b netip.Prefix) bool {
	return slices.ContainsFunc(o.Blocks, b.Overlaps)
}

func (o Object) overlaps(addresses []netip.Addr) bool {
	return slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return slices.ContainsFunc(o.Blocks, func(b netip.Prefix) bool { return b.Contains(a) })
	})
}

func blocksOf(addresses []netip.Addr) []netip.Prefix {
	blocks := make([]netip.Prefix, len(addresses))
	for i, a := range addresses {
		blocks[i] = single(a)
	}
	return blocks
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
