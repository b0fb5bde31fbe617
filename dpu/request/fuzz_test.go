package request_test

import (
	"encoding/json"
	"testing"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

// FuzzCreate: accepted requests can be recorded and have a valid locator;
// errors are Invalid and contain no key.
func FuzzCreate(f *testing.F) {
	for _, c := range dialects() {
		text := testkit.Value(json.Marshal(c.context))(f)
		f.Add("pvc-1f0e", string(c.mode), []byte{1, 3}, `{"nv-volumeName":"pv-1"}`, string(text), `{"num_queues":"4"}`, "", "")
	}
	for secret := range secrets() {
		f.Add(secret, secret, []byte{0}, `{}`, `{}`, `{}`, secret, secret)
		f.Add("v", "Block", []byte{1}, `{}`, `{"targetType":"tcp","targetAddr":"192.0.2.1","nqn":"`+nqn+`"}`, `{}`, "dhchapKey", secret)
	}
	f.Add("../..", "Filesystem", []byte{255}, `{}`, `{"server":"s","share":"/x"}`, `{}`, "\xff", "\x00")
	f.Fuzz(func(t *testing.T, id, mode string, modes []byte, publish, context, storage, key, value string) {
		r := &storagev1.CreateDeviceRequest{VolumeId: id, VolumeMode: mode}
		for _, m := range modes {
			r.AccessModes = append(r.AccessModes, storagev1.AccessMode(int8(m)))
		}
		for text, to := range map[string]*map[string]string{publish: &r.PublishContext, context: &r.VolumeContext, storage: &r.StorageParameters} {
			if json.Unmarshal([]byte(text), to) != nil {
				return
			}
		}
		if r.VolumeContext != nil && key != "" {
			r.VolumeContext[key] = value // JSON would not let invalid UTF-8 through
		}
		c, err := request.ParseCreate(r)
		if err == nil {
			kept(t, c)
			err = c.Locate()
		}
		if err != nil {
			refused(t, err)
			if c.Access != nil {
				t.Fatalf("%+v beside %v", c.Access, err)
			}
			return
		}
		fitting := map[request.Mode][]string{request.Block: {"nvme", "rbd", "file"}, request.Filesystem: {"nfs", "cephfs", "file"}}
		for _, protocol := range fitting[c.Mode] {
			if c.Access.Protocol() == protocol {
				return
			}
		}
		t.Fatalf("%+v with volume_mode %s", c.Access, c.Mode)
	})
}

func refused(t failer, err error) {
	t.Helper()
	if errs.KindOf(err) != errs.Invalid {
		t.Fatalf("%v is of kind %q", err, errs.KindOf(err))
	}
	if err.Error() == "" || access.LooksSecret(err.Error()) {
		t.Fatalf("the error says nothing, or a key: %v", err)
	}
}

func FuzzDelete(f *testing.F) {
	f.Add("pvc-1f0e", "cleat_nvme_0123456789abcdefn1")
	f.Add("..", "../x")
	f.Add("", "")
	f.Add("a\n", "\xff")
	for secret := range secrets() {
		f.Add(secret, secret)
		f.Add("v", secret)
	}
	f.Fuzz(func(t *testing.T, id, name string) {
		d, err := request.ParseDelete(&storagev1.DeleteDeviceRequest{VolumeId: id, DeviceName: name})
		g, errGet := request.ParseGet(&storagev1.GetDeviceRequest{VolumeId: id, DeviceName: name})
		if d != g || (err == nil) != (errGet == nil) {
			t.Fatalf("%+v, %v to delete, %+v, %v to get", d, err, g, errGet)
		}
		if err != nil {
			refused(t, err)
			return
		}
		element(t, d.Volume)
		if d.Name != name || access.LooksSecret(d.Name) {
			t.Fatalf("name %q", d.Name)
		}
	})
}

func FuzzPage(f *testing.F) {
	f.Add(int32(0), "")
	f.Add(int32(-1), "x")
	f.Add(int32(1<<31-1), request.Token("pvc-1f0e"))
	f.Add(int32(1), request.Token("pvc-1f0e")+"\n")
	f.Add(int32(1), request.Token("../x"))
	for secret := range secrets() {
		f.Add(int32(1), secret)
	}
	f.Fuzz(func(t *testing.T, max int32, token string) {
		p, err := request.ParsePage(&storagev1.ListDevicesRequest{MaxEntries: max, StartingToken: token})
		if err != nil {
			refused(t, err)
		} else if p.Max < 1 || p.Max > 4096 || max > 0 && p.Max > int(max) {
			t.Fatalf("%d becomes %d", max, p.Max)
		}
		takenAsGiven(t, token)
	})
}
