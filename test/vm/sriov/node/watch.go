package main

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
)

// period is the polling interval of the functions.
const period = 20 * time.Millisecond

// Event is one of: a device list that the kubelet received; the end of a list
// stream, as an empty list; a change of the functions; an error that would
// break a kubelet.
type Event struct {
	At time.Time // time of receiving a list, or of the end of reading the functions

	Resource string   `json:",omitempty"` // of a list
	Healthy  []string `json:",omitempty"`
	All      []string `json:",omitempty"`

	// Functions is set for each change, and for each list that was still the
	// newest when they were read. Since is the begin of the previous read.
	Functions *Functions `json:",omitempty"`
	Since     time.Time

	Broken string `json:",omitempty"`
}

// Functions is the state of a physical function's virtual functions.
type Functions struct {
	Number  int // sriov_numvfs
	MTU     int // of the physical function
	Virtual []Virtual
}

// Virtual is a virtual function. Its network device is missing here while it is
// in a pod's network namespace.
type Virtual struct {
	Address, Driver string
	Override        string
	Netdev, MAC     string
	MTU             int
}

// book records events.
type book struct {
	mu     sync.Mutex
	events []Event
}

func newBook() *book { return &book{} }

func (b *book) add(e Event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, e)
}

func (b *book) from(n int) []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Event{}, b.events[min(max(n, 0), len(b.events)):]...)
}

// watcher adds events to a book.
type watcher struct {
	kubelet *plugintest.Kubelet
	book    *book
	pf      string          // directory in sysfs
	lists   map[string]int  // recorded lists, by resource
	live    map[string]bool // whether devices are offered, by resource
	last    Functions
	looked  time.Time
}

func (w *watcher) run(ctx context.Context) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		w.recordLists()
		w.look()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// recordLists records new device lists.
func (w *watcher) recordLists() {
	for _, resource := range w.kubelet.Resources() {
		all := w.kubelet.Lists(resource)
		for i, l := range all[w.lists[resource]:] {
			e := Event{At: l.At, Resource: resource, Healthy: l.Healthy, All: l.All, Since: w.looked}
			if now := w.read(); len(w.kubelet.Lists(resource)) == w.lists[resource]+i+1 { // otherwise they can have changed after a withdrawal
				e.Functions = &now
			}
			w.book.add(e)
		}
		w.lists[resource] = len(all)
		if len(all) == 0 {
			continue
		}
		// Without a stream no device is offered.
		live := len(w.kubelet.Healthy(resource)) > 0
		if w.live[resource] && !live && len(all[len(all)-1].Healthy) > 0 {
			now := w.read()
			w.book.add(Event{Resource: resource, Functions: &now, Since: w.looked})
		}
		w.live[resource] = live
	}
}

// look records a change of the functions.
func (w *watcher) look() {
	since, begun, now := w.looked, time.Now(), w.read()
	w.looked = begun
	if !since.IsZero() && reflect.DeepEqual(now, w.last) {
		return
	}
	w.last = now
	w.book.add(Event{Functions: &now, Since: since})
}

// read leaves fields empty that disappear while it reads.
func (w *watcher) read() Functions {
	f := Functions{Number: number(filepath.Join(w.pf, "sriov_numvfs"))}
	if netdev := netdevOf(w.pf); netdev != "" {
		f.MTU = number(filepath.Join(w.pf, "net", netdev, "mtu"))
	}
	for i := range f.Number {
		dir := filepath.Join(w.pf, "virtfn"+strconv.Itoa(i))
		v := Virtual{Address: base(dir), Driver: base(filepath.Join(dir, "driver")), Override: text(filepath.Join(dir, "driver_override"))}
		if v.Netdev = netdevOf(dir); v.Netdev != "" {
			v.MAC, v.MTU = text(filepath.Join(dir, "net", v.Netdev, "address")), number(filepath.Join(dir, "net", v.Netdev, "mtu"))
			if netdevOf(dir) != v.Netdev { // it moved to a pod meanwhile
				v.Netdev, v.MAC, v.MTU = "", "", 0
			}
		}
		f.Virtual = append(f.Virtual, v)
	}
	return f
}

func netdevOf(dir string) string {
	entries, err := os.ReadDir(filepath.Join(dir, "net"))
	if err != nil || len(entries) == 0 {
		return ""
	}
	return entries[0].Name()
}

func base(link string) string {
	target, err := os.Readlink(link)
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

func text(file string) string {
	content, _ := os.ReadFile(file)
	return strings.TrimSpace(string(content))
}

func number(file string) int {
	n, _ := strconv.Atoi(text(file))
	return n
}
