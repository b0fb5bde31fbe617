package request_test

import (
	"fmt"
	"strings"
	"testing"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/volume/access"
)

// secrets are unused keys in every recognisable form, each with a part that
// must not be shown.
func secrets() map[string]string {
	return map[string]string{
		"DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:":                  "ia6z",
		"dhhc-1:03:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:":                  "ia6z",
		"NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:":            "VRLb",
		"AQBvN8ljAAAAABAA8bDh6Zk3v0h0cVb1yXw1Bg==":                                     "8bDh",
		"AgAA8VNlFc1bByAA196v8c7htsEgaHWbEWiNUnqERYsXfCUDYjZTDzxW69w=":                 "196v",
		"\tkey = AQBvN8ljAAAAABAA8bDh6Zk3v0h0cVb1yXw1Bg==\n":                           "8bDh",
		strings.Repeat("x", 4096) + "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjU:": "ia6z",
	}
}

func hidden(t *testing.T, where string, err error, part string) {
	t.Helper()
	names(t, err)
	if err != nil && strings.Contains(err.Error(), part) {
		t.Errorf("a key in %s is shown: %v", where, err)
	}
}

// TestNoSecretInErrors puts keys into every place of every request.
func TestNoSecretInErrors(t *testing.T) {
	for secret, part := range secrets() {
		good := func() *storagev1.CreateDeviceRequest {
			return &storagev1.CreateDeviceRequest{VolumeId: "v", VolumeMode: "Block"}
		}
		for where, put := range map[string]func(*storagev1.CreateDeviceRequest){
			"volume_id":                     func(r *storagev1.CreateDeviceRequest) { r.VolumeId = secret },
			"volume_mode":                   func(r *storagev1.CreateDeviceRequest) { r.VolumeMode = secret },
			"a value of publish_context":    func(r *storagev1.CreateDeviceRequest) { r.PublishContext = kv{"a": secret} },
			"a key of publish_context":      func(r *storagev1.CreateDeviceRequest) { r.PublishContext = kv{secret: "a"} },
			"a value of volume_context":     func(r *storagev1.CreateDeviceRequest) { r.VolumeContext = kv{"a": secret} },
			"a key of volume_context":       func(r *storagev1.CreateDeviceRequest) { r.VolumeContext = kv{secret: "a"} },
			"a value of storage_parameters": func(r *storagev1.CreateDeviceRequest) { r.StorageParameters = kv{"a": secret} },
			"a key of storage_parameters":   func(r *storagev1.CreateDeviceRequest) { r.StorageParameters = kv{secret: "a"} },
		} {
			r := good()
			put(r)
			_, err := request.ParseCreate(r)
			hidden(t, where, err, part)
		}
		for _, c := range dialects() {
			for key := range c.context {
				context := kv{}
				for k, v := range c.context {
					context[k] = v
				}
				context[key] = secret
				_, err := locate(c.mode, publish(), context, nil)
				hidden(t, c.name+": "+key, err, part)
			}
		}
		for where, err := range map[string]error{
			"volume_id of a delete":   second(request.ParseDelete(&storagev1.DeleteDeviceRequest{VolumeId: secret})),
			"device_name of a delete": second(request.ParseDelete(&storagev1.DeleteDeviceRequest{VolumeId: "v", DeviceName: secret})),
			"volume_id of a get":      second(request.ParseGet(&storagev1.GetDeviceRequest{VolumeId: secret})),
			"device_name of a get":    second(request.ParseGet(&storagev1.GetDeviceRequest{VolumeId: "v", DeviceName: secret})),
			"starting_token":          second(request.ParsePage(&storagev1.ListDevicesRequest{StartingToken: secret})),
			"a token around a key":    second(request.ParsePage(&storagev1.ListDevicesRequest{StartingToken: request.Token(secret)})),
		} {
			hidden(t, where, err, part)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// A plain hexadecimal key has no prefix. It is detected only where the name of
// a key is expected, in every such field of every map.
func TestBareKeys(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for _, key := range []string{"dhchapKey", "DHCHAP_KEY", "dhchapCtrlrKey", "dhchap_ctrlr_key", "tlsKey", "tls_key", "PSK", "cephKey"} {
		for _, value := range []string{hex, hex[:32], "pass word", "with/slash", "-x"} {
			for i := range 3 {
				var maps [3]kv
				maps[i] = kv{key: value}
				_, err := request.ParseCreate(&storagev1.CreateDeviceRequest{VolumeId: "v", PublishContext: maps[0], VolumeContext: maps[1], StorageParameters: maps[2]})
				names(t, err, fmt.Sprintf("%q", key), "not shown")
				if strings.Contains(err.Error(), value) && value != "-x" {
					t.Errorf("shown: %v", err)
				}
			}
		}
		for _, name := range []string{"", "tenant-psk", "host.dhchap", "k"} {
			if _, err := request.ParseCreate(&storagev1.CreateDeviceRequest{VolumeId: "v", VolumeContext: kv{key: name}}); err != nil {
				t.Errorf("the name of a key is refused: %v", err)
			}
		}
	}
	// In other fields it is accepted: it can be a checksum.
	if _, err := request.ParseCreate(&storagev1.CreateDeviceRequest{VolumeId: "v", VolumeContext: kv{"checksum": hex}}); err != nil {
		t.Error(err)
	}
}

func TestLooksSecret(t *testing.T) {
	for secret := range secrets() {
		if !access.LooksSecret(secret) || !access.LooksSecret("x="+secret+",y") || strings.Contains(access.Quote(secret), secret) {
			t.Errorf("%q is not seen", secret)
		}
	}
	for _, plain := range []string{"", "DHHC", "pvc-1f0e", nqn, host, lvol, "tenant-psk", "AQ==", strings.Repeat("A", 40), "AQBvN8ljAAAAABAA8bDh6Zk3v0h0cVb1yXw1Bg"} {
		if access.LooksSecret(plain) {
			t.Errorf("%q is taken for a key", plain)
		}
		if got := access.Quote(plain); got != fmt.Sprintf("%q", plain) {
			t.Errorf("Quote(%q) = %s", plain, got)
		}
	}
}
