package configmap

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/kubeconfig"
	"github.com/cleatproject/cleat/internal/store"
)

// Config names a ConfigMap, and how to reach it.
type Config struct {
	Kubeconfig string // "": in-cluster
	Namespace  string // it must exist
	Name       string
	UserAgent  string        // "": client-go's
	Timeout    time.Duration // of a request; 0: 10 s
}

// Object is a store.Object in a ConfigMap, which the first write creates. Values
// are JSON documents, as the records of package store are. It is safe for
// concurrent use, also by several processes.
type Object struct {
	config Config
	client rest.Interface

	mu      sync.Mutex
	last    *snapshot // of the last read or write; immutable
	watched string    // version of the last event of a watch that goes on
}

var _ store.Object = (*Object)(nil)

// snapshot is the ConfigMap at one resource version. Without generation it does
// not exist.
type snapshot struct {
	generation uint64
	entries    map[string]json.RawMessage
	object     configMap // without the state
	size       int       // of the state after compression, in bytes
}

// New makes no API call.
func New(c Config) (*Object, error) {
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	if problems := validation.IsDNS1123Label(c.Namespace); len(problems) > 0 {
		return nil, errs.Errorf(errs.Invalid, "namespace %q is not a valid namespace name: %s", c.Namespace, strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Subdomain(c.Name); len(problems) > 0 {
		return nil, errs.Errorf(errs.Invalid, "%q is not a valid name of a ConfigMap: %s", c.Name, strings.Join(problems, "; "))
	}
	access, err := kubeconfig.Load(c.Kubeconfig, c.UserAgent)
	if err != nil {
		return nil, err
	}
	client, err := newClient(access)
	if err != nil {
		return nil, fmt.Errorf("client of the API server %s: %w", access.Host, err)
	}
	return &Object{config: c, client: client}, nil
}

// String returns kind, namespace and name.
func (o *Object) String() string {
	return fmt.Sprintf("ConfigMap %s/%s", o.config.Namespace, o.config.Name)
}

// ReadState implements store.Object.
func (o *Object) ReadState(ctx context.Context) (generation uint64, entries map[string][]byte, err error) {
	s, err := o.read(ctx)
	if err != nil {
		return 0, nil, err
	}
	return s.generation, s.copied(), nil
}

// RecallState returns the state of the last read or write, if it existed, without a
// request. WriteState fails if it has changed since.
func (o *Object) RecallState() (generation uint64, entries map[string][]byte, ok bool) {
	s := o.remembered()
	if s == nil || s.generation == 0 {
		return 0, nil, false
	}
	return s.generation, s.copied(), true
}

func (s *snapshot) copied() map[string][]byte {
	entries := make(map[string][]byte, len(s.entries))
	for name, value := range s.entries {
		entries[name] = bytes.Clone(value)
	}
	return entries
}

func (o *Object) read(ctx context.Context) (*snapshot, error) {
	found, exists, err := o.get(ctx)
	if err != nil {
		return nil, err
	}
	s := &snapshot{}
	if exists {
		if last := o.remembered(); last != nil && last.generation != 0 && last.object.version() == found.version() {
			return last, nil
		}
		if s, err = o.decode(found); err != nil {
			return nil, err
		}
	}
	o.remember(s)
	return s, nil
}

// decode takes the state out of a ConfigMap.
func (o *Object) decode(found configMap) (*snapshot, error) {
	state, ours := found.BinaryData[stateKey]
	if !ours {
		return nil, errs.Errorf(errs.Precondition, "%s exists without binaryData[%q]: another program has written it; use another name, or delete it", o, stateKey)
	}
	c, err := decode(state)
	if err != nil {
		return nil, fmt.Errorf("%s: binaryData[%q]: %w; restore the ConfigMap from a backup", o, stateKey, err)
	}
	delete(found.BinaryData, stateKey)
	return &snapshot{generation: c.Generation, entries: c.Entries, object: found, size: len(state)}, nil
}

// WriteState implements store.Object. ErrChanged is also the error after a
// change of other parts of the ConfigMap, such as labels. Exhausted: the state
// is too large; nothing was sent.
func (o *Object) WriteState(ctx context.Context, expect uint64, set map[string][]byte, remove []string) error {
	s := o.remembered()
	if s == nil || s.generation != expect {
		var err error
		if s, err = o.read(ctx); err != nil {
			return err
		}
	}
	if s.generation != expect {
		return fmt.Errorf("%s: generation is %d, expected %d: %w", o, s.generation, expect, store.ErrChanged)
	}
	next, err := s.apply(set, remove)
	if err != nil {
		return fmt.Errorf("%s: %w", o, err)
	}
	state, err := encode(next)
	if err != nil {
		return fmt.Errorf("%s: %w", o, err)
	}
	written, err := o.put(ctx, s.object, state)
	if err != nil {
		// After a conflict the next write must read again.
		o.remember(nil)
		return err
	}
	delete(written.BinaryData, stateKey)
	o.remember(&snapshot{generation: next.Generation, entries: next.Entries, object: written, size: len(state)})
	return nil
}

// Spare returns Exhausted when only a reserve is left, for changes of records
// and for deletions, which write before they remove.
func (o *Object) Spare(ctx context.Context) error {
	s, err := o.read(ctx)
	if err == nil && s.size > maxCompressed-reserve {
		err = errs.Errorf(errs.Exhausted, "%s has %d bytes of state, of at most %d; delete volumes that are not needed", o, s.size, maxCompressed)
	}
	return err
}

// apply returns the content after a write.
func (s *snapshot) apply(set map[string][]byte, remove []string) (content, error) {
	c := content{Format: format, Generation: newGeneration(), Entries: make(map[string]json.RawMessage, len(s.entries)+len(set))}
	maps.Copy(c.Entries, s.entries)
	for name, value := range set {
		if !utf8.ValidString(name) || !json.Valid(value) {
			return content{}, errs.Errorf(errs.Internal, "entry %s is not a JSON document with a name in UTF-8", errs.Quote(name))
		}
		c.Entries[name] = bytes.Clone(value)
	}
	for _, name := range remove {
		delete(c.Entries, name)
	}
	return c, nil
}

func (o *Object) remembered() *snapshot {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

func (o *Object) remember(s *snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = s
}
