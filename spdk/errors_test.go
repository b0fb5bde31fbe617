package spdk

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

type refusal struct {
	method string
	code   int
	text   string
}

// recorded has the refusals of a real SPDK with their meanings.
func recorded() map[refusal][]Meaning {
	const (
		attach   = "bdev_nvme_attach_controller"
		decode   = "spdk_json_decode_object failed"
		exists   = "File exists"
		noDevice = "No such device"
		invalid  = "Invalid argument"
		params   = "Invalid parameters"
		noSub    = "Subsystem with NQN 'nqn.2026-01.io.test:nope' not found"
	)
	all := map[refusal][]Meaning{
		{"", -32600, "Invalid request"}:                                                         {BadParams},
		{"no_such_method", -32601, "Method not found"}:                                          {UnknownMethod},
		{"save_config", -32601, "Method not found"}:                                             {UnknownMethod},
		{"fsdev_get_fsdevs", -32601, "Method not found"}:                                        {UnknownMethod},
		{"bdev_get_bdevs", -32603, decode}:                                                      {BadParams},
		{"bdev_get_bdevs", -32600, "Invalid request"}:                                           {BadParams},
		{"bdev_get_bdevs", -19, noDevice}:                                                       {NotFound},
		{"bdev_get_bdevs", -110, "Connection timed out"}:                                        {NotFound, TimedOut},
		{"bdev_malloc_create", -32603, decode}:                                                  {BadParams},
		{"bdev_malloc_create", -22, invalid}:                                                    {BadParams},
		{"bdev_malloc_create", -12, "Cannot allocate memory"}:                                   {NoSpace},
		{"bdev_malloc_create", -17, exists}:                                                     {Exists},
		{"bdev_aio_create", -17, exists}:                                                        {Exists},
		{"bdev_aio_create", -2, "No such file or directory"}:                                    {NoFile},
		{"bdev_aio_create", -22, invalid}:                                                       {BadParams},
		{"bdev_lvol_create_lvstore", -1, "Operation not permitted"}:                             {Denied},
		{"bdev_lvol_create_lvstore", -17, exists}:                                               {Exists},
		{"bdev_lvol_create_lvstore", -22, invalid}:                                              {BadParams},
		{"bdev_lvol_create", -17, exists}:                                                       {Exists},
		{"bdev_lvol_create", -22, invalid}:                                                      {BadParams},
		{"bdev_lvol_create", -32602, "No space left on device"}:                                 {NoSpace},
		{"bdev_lvol_snapshot", -32602, exists}:                                                  {Exists},
		{"bdev_lvol_snapshot", -32602, invalid}:                                                 {BadParams},
		{"bdev_lvol_clone", -32602, exists}:                                                     {Exists},
		{"bdev_lvol_clone", -32602, invalid}:                                                    {BadParams},
		{"bdev_lvol_resize", -32602, "Operation not permitted"}:                                 {Denied},
		{"bdev_lvol_resize", -32602, "No space left on device"}:                                 {NoSpace},
		{"bdev_lvol_delete", -32603, "Operation not permitted"}:                                 {Denied},
		{"bdev_set_qos_limit", -22, "No rate limits specified"}:                                 {BadParams},
		{"fsdev_aio_create", -32603, exists}:                                                    {Exists},
		{"fsdev_aio_create", -32603, "No such file or directory"}:                               {NoFile},
		{"fsdev_aio_create", -32602, decode}:                                                    {BadParams},
		{"nvmf_create_transport", -32602, "Invalid transport type 'BOGUS'"}:                     {BadParams},
		{"nvmf_create_transport", -32603, "Transport type 'TCP' already exists"}:                {Exists},
		{"nvmf_get_subsystems", -32602, noSub}:                                                  {NotFound},
		{"nvmf_delete_subsystem", -32602, noSub}:                                                {NotFound},
		{"nvmf_subsystem_add_ns", -32602, noSub}:                                                {NotFound},
		{attach, -5, "Input/output error"}:                                                      {Unreachable},
		{attach, -19, noDevice}:                                                                 {NoTransport},
		{attach, -22, invalid}:                                                                  {BadParams},
		{attach, -32603, decode}:                                                                {BadParams},
		{attach, -17, exists}:                                                                   {Exists, OtherName},
		{attach, -114, "A controller named nv0 already exists with the specified network path"}: {Exists, SamePath},
		{attach, -114, "A controller named nv0 already exists and multipath is disabled"}:       {Exists},
		{"bdev_nvme_get_controllers", -22, "Controller nv0 does not exist"}:                     {NotFound},
		{"bdev_nvme_detach_controller", -6, "No such device or address"}:                        {NotFound, NoPath},
		{"bdev_malloc_create", -1, "Method may only be called after framework is initialized using framework_start_init RPC."}:                                                                        {NotReady, WrongState},
		{"bdev_set_options", -1, "Method may only be called before framework is initialized. Use --wait-for-rpc command line parameter and then issue this RPC before the framework_start_init RPC."}: {WrongState},
		{"bdev_nvme_set_options", -1, "RPC not permitted with nvme controllers already attached"}:                                                                                                     {WrongState},
		{"bdev_set_qos_limit", -32602, "Failed to configure rate limit: Resource temporarily unavailable"}:                                                                                            {Busy},
	}
	for _, m := range []string{"bdev_malloc_delete", "bdev_aio_delete", "bdev_lvol_create_lvstore", "bdev_lvol_get_lvstores", "bdev_lvol_create", "bdev_lvol_snapshot", "bdev_lvol_delete", "bdev_set_qos_limit", "fsdev_aio_delete", "bdev_nvme_detach_controller"} {
		all[refusal{m, -19, noDevice}] = []Meaning{NotFound}
	}
	// SPDK uses one message for existing and missing objects and bad
	// parameters.
	for _, m := range []string{"nvmf_subsystem_add_listener", "nvmf_create_transport", "nvmf_create_subsystem", "nvmf_subsystem_add_ns", "nvmf_subsystem_remove_ns", "nvmf_subsystem_remove_listener"} {
		all[refusal{m, -32602, params}] = nil
	}
	for _, m := range []string{"nvmf_subsystem_add_host", "nvmf_subsystem_remove_host"} {
		all[refusal{m, -32603, "Internal error"}] = nil
	}
	for _, n := range []string{"nqn.2026-01.io.test:vol1", "notannqn"} {
		all[refusal{"nvmf_create_subsystem", -32603, "Unable to create subsystem " + n}] = nil
	}
	return all
}

func TestMeanings(t *testing.T) {
	for r, want := range recorded() {
		if got := meanings(r.method, r.code, r.text); !slices.Equal(got, want) {
			t.Errorf("%+v means %q, want %q", r, got, want)
		}
	}
	for r, want := range map[refusal][]Meaning{ // read in the sources
		{"bdev_nvme_attach_controller", -126, "Required key not available"}:        {NoKey},
		{"bdev_nvme_attach_controller", -34, "Numerical result out of range"}:      {TooMany},
		{"bdev_nvme_attach_controller", -110, "Connection timed out"}:              {Unreachable, TimedOut},
		{"bdev_nvme_attach_controller", -95, "Operation not supported"}:            {Unsupported},
		{"bdev_nvme_detach_controller", -110, "Connection timed out"}:              {TimedOut},
		{"keyring_file_add_key", -17, "File exists"}:                               {Exists},
		{"keyring_file_add_key", -1, "Operation not permitted"}:                    {Denied},
		{"keyring_file_add_key", -2, "No such file or directory"}:                  {NoFile},
		{"keyring_file_remove_key", -126, "Required key not available"}:            {NotFound},
		{"keyring_file_remove_key", -2, "No such file or directory"}:               {NotFound},
		{"bdev_rbd_delete", -16, "Device or resource busy"}:                        {Busy},
		{"nvme_controller_create", -32603, "Internal error"}:                       nil,
		{"nvmf_create_transport", -32603, "Failed to add transport to tgt.(-17)"}:  {Exists}, // of two requests at once
		{"nvme_controller_create", -1, "Cannot find a function with that address"}: nil,
	} {
		if got := meanings(r.method, r.code, r.text); !slices.Equal(got, want) {
			t.Errorf("%+v means %q, want %q", r, got, want)
		}
	}
}

// All recorded errors are tested above.
func TestEveryRecordedErrorIsTested(t *testing.T) {
	f := testkit.Value(os.Open("spdktest/testdata/spdk-rpc.jsonl"))(t)
	defer func() { _ = f.Close() }()
	known, found := recorded(), map[refusal]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var record struct {
			Request  struct{ Method string }
			Response *struct {
				Error *struct {
					Code    int
					Message string
				}
			}
		}
		testkit.Must(t, json.Unmarshal(lines.Bytes(), &record))
		if record.Response == nil || record.Response.Error == nil {
			continue
		}
		r := refusal{record.Request.Method, record.Response.Error.Code, record.Response.Error.Message}
		found[r] = true
		if _, ok := known[r]; !ok {
			t.Errorf("%+v is not in the table of the test", r)
		}
	}
	testkit.Must(t, lines.Err())
	for r := range known {
		if !found[r] {
			t.Errorf("%+v was never recorded", r)
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   Error
		text   string
		is     []error
		not    []error
	}{
		"plain": {
			`{"id":%d,"error":{"code":-19,"message":"No such device"}}`,
			Error{Code: -19, Message: "No such device"}, "bdev_get_bdevs: No such device (code -19)",
			[]error{NotFound, errs.NotFound}, []error{Exists, Unanswered, errs.Unavailable},
		},
		"with a result as well": {
			`{"id":%d,"error":{"code":-110,"message":"Connection timed out","data":{}},"result":true}`,
			Error{Code: -110, Message: "Connection timed out"}, "(code -110)",
			[]error{NotFound, TimedOut, errs.NotFound}, nil,
		},
		"a text alone": {
			`{"id":%d,"error":"broken"}`,
			Error{Message: "broken"}, "broken", []error{errs.Internal}, nil,
		},
		"another form": {
			`{"id":%d,"error":[1]}`,
			Error{Message: "malformed JSON-RPC error"}, "malformed", []error{errs.Internal}, nil,
		},
		"a code that is a text": {
			`{"id":%d,"error":{"code":"E1","message":"broken"}}`,
			Error{Message: "broken"}, "broken", []error{errs.Internal}, nil,
		},
		"SNAP 5": {
			`{"id":%d,"result":{"status":"SNAP_ERROR_NOT_FOUND","message":"no such controller"}}`,
			Error{Status: "SNAP_ERROR_NOT_FOUND", Message: "no such controller"}, "bdev_get_bdevs: no such controller (SNAP_ERROR_NOT_FOUND)",
			[]error{errs.Internal}, nil,
		},
		"SNAP 5 in place of the result": {
			`{"id":%d,"status":"SNAP_ERROR","message":{"text":"?"},"result":null}`,
			Error{Status: "SNAP_ERROR"}, "(SNAP_ERROR)", nil, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, Config{}, answers(c.answer))
			err := client.Call(t.Context(), "bdev_get_bdevs", nil, nil)
			got, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("got %v, want an *Error", err)
			}
			c.want.Method = "bdev_get_bdevs"
			testkit.Diff(t, "the answer", c.want, *got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".means" }, cmp.Ignore()))
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("%q does not say %q", err, c.text)
			}
			for _, want := range c.is {
				if !errors.Is(err, want) {
					t.Errorf("%v is not %q", err, want)
				}
			}
			for _, never := range c.not {
				if errors.Is(err, never) {
					t.Errorf("%v is %q", err, never)
				}
			}
		})
	}
}

// An Error created by another package has the same meanings.
func TestErrorOfOtherPackageHasMeanings(t *testing.T) {
	err := fmt.Errorf("looking: %w", &Error{Method: "bdev_nvme_get_controllers", Code: -22, Message: "Controller x does not exist"})
	if !errors.Is(err, NotFound) || errs.KindOf(err) != errs.NotFound {
		t.Errorf("%v is not NotFound, but %q", err, errs.KindOf(err))
	}
}

func TestKinds(t *testing.T) {
	for _, r := range table() {
		if errs.KindOf(&Error{Code: 1, means: r.means}) == errs.Internal {
			t.Errorf("%q has no kind", r.means)
		}
	}
}

func TestResults(t *testing.T) {
	for name, c := range map[string]struct{ answer, words string }{
		"missing":    {`{"id":%d}`, "without a result"},
		"null":       {`{"id":%d,"result":null}`, "without a result"},
		"other type": {`{"id":%d,"result":[1]}`, "parse the response"},
	} {
		client, _ := serve(t, Config{}, answers(c.answer))
		var got string
		testkit.WantError(t, "Call", client.Call(t.Context(), "x", nil, &got), errs.Internal, "x: ", c.words)
		if name == "other type" {
			continue
		}
		if err := client.Call(t.Context(), "x", nil, nil); err != nil {
			t.Errorf("%s, without a result: %v", name, err)
		}
	}
	client, _ := serve(t, Config{}, answers(`{"id":%d,"result":false}`))
	testkit.WantError(t, "Do", client.Do(t.Context(), "bdev_rbd_delete", nil), errs.Internal, "returned false")
}

func TestErrorsAndLogContainNoSecrets(t *testing.T) {
	const secret = "NVMeTLSkey-1:01:abcdef"
	for name, params := range map[string]any{
		"psk":    NVMeAttach{Name: "c", PSK: secret},
		"dhchap": NVMeAttach{Name: "c", DHCHAPKey: secret},
		"ctrlr":  NVMeAttach{Name: "c", DHCHAPCtrlKey: secret},
		"ceph":   map[string]any{"config": map[string]any{"Key": secret}},
		"list":   map[string]any{"secrets": []any{map[string]any{"a": secret}, secret[:8]}},
		"words":  map[string]any{"password": secret, "user_token": secret[:4]},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			registry := prometheus.NewRegistry()
			client, _ := serve(t, Config{
				Logger:  slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
				Metrics: registry, Connections: 1,
			}, answers(`{"id":%d,"error":{"code":-32602,"message":"File exists: key `+secret+` of c"}}`))
			err := client.Call(t.Context(), "keyring_file_add_key", params, nil)
			if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "*** of c") {
				t.Errorf("got %v", err)
			}
			if err := client.Close(); err != nil { // the log is complete then
				t.Error(err)
			}
			if strings.Contains(log.String(), secret) || !strings.Contains(log.String(), "keyring_file_add_key") {
				t.Errorf("the log: %s", log.String())
			}
		})
	}
	if got := redact("cannot open /keys/a", []byte(`{"key_file":"/keys/a","name":"a"}`)); got != "cannot open /keys/a" {
		t.Errorf("the name of a file became %q", got)
	}
}

// A secret that is a part of the process's words does not change their meaning.
func TestRedactionKeepsMeaning(t *testing.T) {
	client, _ := serve(t, Config{}, answers(`{"id":%d,"error":{"code":-32603,"message":"File exists"}}`))
	err := client.Call(t.Context(), "x", map[string]string{"psk": "File"}, nil)
	if !errors.Is(err, Exists) || strings.Contains(err.Error(), "File") {
		t.Errorf("got %v", err)
	}
}
