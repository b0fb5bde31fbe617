package configmap_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/configmap"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

const name = "cleat-spdk"

func open(t testing.TB, s *kubeapi.Server) *configmap.Object {
	t.Helper()
	return testkit.Value(configmap.New(configmap.Config{Kubeconfig: s.Kubeconfig(t), Namespace: kubeapi.ConfigMaps().Namespace, Name: name}))(t)
}

func one(value string) map[string][]byte { return map[string][]byte{"a/x": []byte(value)} }

// written returns a server with a ConfigMap, its object and its generation.
func written(t *testing.T) (*kubeapi.Server, *configmap.Object, uint64) {
	t.Helper()
	s := kubeapi.New(t, kubeapi.ConfigMaps())
	o := open(t, s)
	testkit.Must(t, o.WriteState(t.Context(), 0, one("1"), nil))
	return s, o, read(t, o, one("1"))
}

func read(t *testing.T, o *configmap.Object, want map[string][]byte) uint64 {
	t.Helper()
	generation, found, err := o.ReadState(t.Context())
	testkit.Must(t, err)
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	return generation
}

func TestObject(t *testing.T) {
	storetest.Run(t, store.ErrChanged, func(t *testing.T) func() storetest.Handle {
		s := kubeapi.New(t, kubeapi.ConfigMaps())
		return func() storetest.Handle { return open(t, s) }
	})
}

func TestNew(t *testing.T) {
	s := kubeapi.New(t, kubeapi.ConfigMaps())
	for what, c := range map[string]struct {
		config configmap.Config
		kind   errs.Kind
		text   string
	}{
		"namespace":  {configmap.Config{Kubeconfig: s.Kubeconfig(t), Namespace: "A", Name: name}, errs.Invalid, `namespace "A"`},
		"name":       {configmap.Config{Kubeconfig: s.Kubeconfig(t), Namespace: "a", Name: "b/c"}, errs.Invalid, `"b/c" is not a valid name`},
		"kubeconfig": {configmap.Config{Kubeconfig: "/nonexistent/kubeconfig", Namespace: "a", Name: "b"}, errs.Internal, "/nonexistent/kubeconfig"},
	} {
		testkit.WantError(t, what, testkit.Err(configmap.New(c.config)), c.kind, c.text)
	}
}

func TestRequests(t *testing.T) {
	s, o, generation := written(t)
	gets := s.Count("get")
	testkit.Must(t, o.WriteState(t.Context(), generation, one("2"), nil))
	if n := s.Count("get") - gets; n != 0 {
		t.Errorf("a write after a read has %d further reads", n)
	}
	generation = read(t, o, one("2"))
	testkit.Must(t, open(t, s).WriteState(t.Context(), generation, one("3"), nil))
	read(t, o, one("3"))
}

func TestOtherPartsAreKept(t *testing.T) {
	s, o, _ := written(t)
	created, _ := s.Get(name)
	if diff := cmp.Diff(map[string]any{"app.kubernetes.io/managed-by": "cleat"}, created.Metadata["labels"]); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	s.Change(name, func(m *kubeapi.Object) {
		m.Metadata["annotations"] = map[string]any{"owner": "storage team"}
		m.Metadata["managedFields"] = []any{map[string]any{"manager": "kubectl"}}
		m.Data, m.BinaryData["more"] = map[string]string{"note": "n"}, []byte("b")
	})
	want, _ := s.Get(name)
	delete(want.Metadata, "managedFields") // the API server keeps them then
	for value := range 3 {
		generation, _, err := o.ReadState(t.Context())
		testkit.Must(t, err)
		testkit.Must(t, o.WriteState(t.Context(), generation, one(fmt.Sprint(value)), nil))
	}
	got, _ := s.Get(name)
	for _, m := range []*kubeapi.Object{&want, &got} {
		delete(m.Metadata, "resourceVersion")
		delete(m.BinaryData, "state")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestWriteFaults: after ErrChanged the write was not made, after another error
// it was made at most once.
func TestWriteFaults(t *testing.T) {
	for what, c := range map[string]struct {
		fault kubeapi.Fault
		want  error
		made  bool
	}{
		"label changed":         {kubeapi.Changed, store.ErrChanged, false},
		"server refuses":        {kubeapi.Failed, errs.Unavailable, false},
		"answer replaced":       {kubeapi.Lost, errs.Unavailable, true},
		"connection ends":       {kubeapi.Dropped, errs.Unavailable, true},
		"request arrives later": {kubeapi.Late, errs.Unavailable, true},
	} {
		t.Run(what, func(t *testing.T) {
			s, o, generation := written(t)
			puts := 0
			s.Fail(func(verb string) kubeapi.Fault {
				if verb != "update" {
					return kubeapi.None
				}
				puts++
				return c.fault
			})
			testkit.WantError(t, "write", o.WriteState(t.Context(), generation, one("2"), nil), c.want, "ConfigMap cleat-system/cleat-spdk")
			s.Fail(nil)
			if puts != 1 {
				t.Errorf("the write was sent %d times", puts)
			}
			want := one("1")
			if c.made {
				want = one("2")
				testkit.WantError(t, "repeat", o.WriteState(t.Context(), generation, one("3"), nil), store.ErrChanged)
			}
			testkit.Must(t, o.WriteState(t.Context(), read(t, o, want), one("4"), nil))
			read(t, o, one("4"))
		})
	}
}

func TestCreateFaults(t *testing.T) {
	for what, c := range map[string]struct {
		fault kubeapi.Fault
		made  bool
	}{
		"server refuses": {kubeapi.Failed, false}, "connection ends": {kubeapi.Dropped, true}, "request arrives later": {kubeapi.Late, true},
	} {
		t.Run(what, func(t *testing.T) {
			s := kubeapi.New(t, kubeapi.ConfigMaps())
			o := open(t, s)
			read(t, o, map[string][]byte{})
			s.Fail(func(string) kubeapi.Fault { return c.fault })
			testkit.WantError(t, "create", o.WriteState(t.Context(), 0, one("1"), nil), errs.Unavailable)
			s.Fail(nil)
			if c.made {
				testkit.WantError(t, "repeat", o.WriteState(t.Context(), 0, one("2"), nil), store.ErrChanged)
				read(t, o, one("1"))
				return
			}
			testkit.Must(t, o.WriteState(t.Context(), 0, one("2"), nil))
		})
	}
}

// TestReplaced: of a ConfigMap that was deleted and created again nothing is
// overwritten.
func TestReplaced(t *testing.T) {
	s, o, generation := written(t)
	s.Delete(name)
	testkit.WantError(t, "deleted", o.WriteState(t.Context(), generation, one("2"), nil), store.ErrChanged)
	testkit.Must(t, open(t, s).WriteState(t.Context(), 0, one("3"), nil))
	testkit.WantError(t, "replaced", o.WriteState(t.Context(), generation, one("2"), nil), store.ErrChanged)
	testkit.WantError(t, "created", o.WriteState(t.Context(), 0, one("2"), nil), store.ErrChanged)
	read(t, o, one("3"))
}

func TestForeignConfigMap(t *testing.T) {
	s := kubeapi.New(t, kubeapi.ConfigMaps())
	o := open(t, s)
	read(t, o, map[string][]byte{})
	s.Change(name, func(m *kubeapi.Object) { m.Data = map[string]string{"key": "value"} })
	before, _ := s.Get(name)
	testkit.WantError(t, "create", o.WriteState(t.Context(), 0, one("1"), nil), store.ErrChanged)
	for what, err := range map[string]error{
		"write": o.WriteState(t.Context(), 0, one("1"), nil),
		"read":  readError(t, o),
		"open":  testkit.Err(store.OpenShared(t.Context(), "state", o, store.Options{Role: "engine", Version: 1})),
	} {
		testkit.WantError(t, what, err, errs.Precondition, "ConfigMap cleat-system/cleat-spdk", "another program", "use another name")
	}
	if after, _ := s.Get(name); !cmp.Equal(before, after) {
		t.Errorf("changed: %v", after)
	}
}

func readError(t *testing.T, o *configmap.Object) error {
	t.Helper()
	_, _, err := o.ReadState(t.Context())
	return err
}

func TestDamagedConfigMap(t *testing.T) {
	s, o, generation := written(t)
	s.Change(name, func(m *kubeapi.Object) { m.BinaryData["state"] = m.BinaryData["state"][:20] })
	testkit.WantError(t, "read", readError(t, o), store.ErrDamaged, "ConfigMap cleat-system/cleat-spdk", `binaryData["state"]`, "restore the ConfigMap from a backup")
	testkit.WantError(t, "write", o.WriteState(t.Context(), generation, one("2"), nil), store.ErrChanged)
	testkit.WantError(t, "write again", o.WriteState(t.Context(), generation, one("2"), nil), store.ErrDamaged)
}

func TestRefusedByServer(t *testing.T) {
	s, o, generation := written(t)
	for code, c := range map[int]struct {
		kind errs.Kind
		text string
	}{
		http.StatusForbidden:           {errs.Denied, "the service account needs get, update and watch"},
		http.StatusUnauthorized:        {errs.Denied, "check the token"},
		http.StatusInternalServerError: {errs.Unavailable, "does not respond"},
		http.StatusGatewayTimeout:      {errs.Unavailable, "does not respond"},
		http.StatusTooManyRequests:     {errs.Unavailable, "does not respond"},
		http.StatusUnprocessableEntity: {errs.Internal, "refused by the test"},
	} {
		s.Refuse(code)
		testkit.WantError(t, fmt.Sprint("read ", code), readError(t, o), c.kind, c.text, "read ConfigMap cleat-system/cleat-spdk")
		s.Refuse(0)
		read(t, o, one("1"))
		s.Refuse(code)
		testkit.WantError(t, fmt.Sprint("write ", code), o.WriteState(t.Context(), generation, one("2"), nil), c.kind, c.text, "write ConfigMap cleat-system/cleat-spdk")
	}
	s.Refuse(0)
	read(t, o, one("1"))
	other := testkit.Value(configmap.New(configmap.Config{Kubeconfig: s.Kubeconfig(t), Namespace: "none", Name: name}))(t)
	testkit.WantError(t, "namespace", other.WriteState(t.Context(), 0, one("1"), nil), errs.Precondition, "the namespace does not exist")
}

func TestServerHangs(t *testing.T) {
	s := kubeapi.New(t, kubeapi.ConfigMaps())
	s.Fail(func(string) kubeapi.Fault { return kubeapi.Hung })
	short := testkit.Value(configmap.New(configmap.Config{Kubeconfig: s.Kubeconfig(t), Namespace: kubeapi.ConfigMaps().Namespace, Name: name, Timeout: 20 * time.Millisecond}))(t)
	testkit.WantError(t, "timeout", readError(t, short), errs.Unavailable, "does not respond")
	ctx, cancel := context.WithCancel(t.Context())
	s.Fail(func(string) kubeapi.Fault { cancel(); return kubeapi.Hung })
	_, _, err := open(t, s).ReadState(ctx)
	testkit.WantError(t, "canceled", err, context.Canceled)
}

// volume is a record of about 600 bytes, of which four random UUIDs are.
func volume() []byte {
	text := fmt.Sprintf(`{"v":1,"r":{"name":"pvc-%s","id":"storage-target-01:%s","size":1073741824,"store":"lvs_nvme0","nqn":"nqn.2020-04.io.spdk.csi:uuid:%s",`+
		`"grants":[{"node":"worker-%s","hostNQN":"nqn.2014-08.org.nvmexpress:uuid:%s","addresses":["192.0.2.17","198.51.100.17"],"mode":"read-write"}],`+
		`"parameters":{"csi.storage.k8s.io/pvc/name":"data-database-0","csi.storage.k8s.io/pvc/namespace":"production"},"state":"ready","created":"2026-11-24T18:00:00Z","filler":""}}`,
		uuid.New(), uuid.New(), uuid.New(), rand.Text()[:4], uuid.New())
	return []byte(strings.Replace(text, `"filler":""`, `"filler":"`+strings.Repeat("x", max(0, 600-len(text)))+`"`, 1))
}

func volumes(n int) map[string][]byte {
	all := map[string][]byte{}
	for range n {
		all["volumes/"+uuid.NewString()] = volume()
	}
	return all
}

// TestCapacity holds the package's documentation to what fits.
func TestCapacity(t *testing.T) {
	s, o, generation := written(t)
	testkit.Must(t, o.WriteState(t.Context(), generation, volumes(8000), nil))
	stored, _ := s.Get(name)
	t.Logf("8000 records have %d bytes", len(stored.BinaryData["state"]))
	generation, _, err := o.ReadState(t.Context())
	testkit.Must(t, err)
	puts := s.Count("update")
	random := make([]byte, 300_000)
	testkit.Value(rand.Read(random))(t)
	for what, c := range map[string]struct{ value, text string }{
		"random":   {hex.EncodeToString(random), "bytes after compression, at most 1000000 fit"},
		"constant": {strings.Repeat("x", 17<<20), "at most 16777216 are supported"},
	} {
		value := one(strconv.Quote(c.value))
		testkit.WantError(t, what, o.WriteState(t.Context(), generation, value, nil), errs.Exhausted, c.text, "ConfigMap cleat-system/cleat-spdk")
	}
	if n := s.Count("update") - puts; n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	after, _, err := o.ReadState(t.Context())
	if err != nil || after != generation {
		t.Errorf("generation %d, %v; want %d", after, err, generation)
	}
	testkit.WantError(t, "no JSON", o.WriteState(t.Context(), generation, one("{"), nil), errs.Internal, `"a/x"`)
}

// TestReserve: no records are added to the last part, in which others change.
func TestReserve(t *testing.T) {
	db := testkit.Value(store.OpenShared(t.Context(), "state", open(t, kubeapi.New(t, kubeapi.ConfigMaps())), store.Options{Role: "engine", Version: 1}))(t)
	put := func(key, value string) {
		testkit.Must(t, db.Update(t.Context(), func(tx *store.Tx) error { return store.Bucket[string]{Name: "b"}.Put(tx, key, value) }))
	}
	testkit.Must(t, db.Spare(t.Context()))
	noise := make([]byte, 600_000)
	testkit.Value(rand.Read(noise))(t)
	put("noise", hex.EncodeToString(noise))
	testkit.WantError(t, "spare", db.Spare(t.Context()), errs.Exhausted, "store state", "ConfigMap cleat-system/cleat-spdk")
	put("other", "v")
}

// TestUpdateExhausted: the kind reaches the caller of a transaction.
func TestUpdateExhausted(t *testing.T) {
	db := testkit.Value(store.OpenShared(t.Context(), "state", open(t, kubeapi.New(t, kubeapi.ConfigMaps())), store.Options{Role: "engine", Version: 1}))(t)
	err := db.Update(t.Context(), func(tx *store.Tx) error {
		return store.Bucket[string]{Name: "b"}.Put(tx, "k", strings.Repeat("x", 17<<20))
	})
	testkit.WantError(t, "update", err, errs.Exhausted, "store state")
}

// With a watch the state needs no request while nothing changes, also after own writes,
// and counts no more after a change by another client.
func TestWatch(t *testing.T) {
	s, o, generation := written(t)
	if _, ok := o.RecentState(); ok {
		t.Error("a state without a watch counts")
	}
	failures := make(chan error, 100)
	testkit.Go(t, func(ctx context.Context) error {
		o.Watch(ctx, func(err error) { failures <- err })
		return nil
	})
	counts := func(want map[string][]byte) {
		t.Helper()
		testkit.EventuallyNil(t, "the state of the last read or write counts", func() error {
			if entries, ok := o.RecentState(); !ok || !cmp.Equal(entries, want) {
				return fmt.Errorf("%s, %t", entries, ok)
			}
			return nil
		})
	}
	counts(one("1"))
	testkit.Must(t, o.WriteState(t.Context(), generation, one("2"), nil))
	counts(one("2"))
	reads := s.Count("get")

	other := open(t, s)
	testkit.Must(t, other.WriteState(t.Context(), read(t, other, one("2")), one("3"), nil))
	testkit.Eventually(t, "the state before the change does not count", func() bool { _, ok := o.RecentState(); return !ok })
	read(t, o, one("3"))
	counts(one("3"))
	if more := s.Count("get") - reads; more != 2 {
		t.Errorf("%d reads, want one by each client", more)
	}

	s.Change("another", func(*kubeapi.Object) {})
	s.ExpireVersions() // also that of the ConfigMap
	s.Refuse(http.StatusForbidden)
	s.EndWatches()
	testkit.WantError(t, "a watch without permission", testkit.Receive(t, "a failure", failures), errs.Denied, "get, update and watch")
	if _, ok := o.RecentState(); ok {
		t.Error("a state counts that is not watched any more")
	}
	s.Refuse(0)
	counts(one("3"))
}
