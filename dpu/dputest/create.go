package dputest

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
)

const (
	rwo = storagev1.AccessMode_ACCESS_MODE_RWO
	rwx = storagev1.AccessMode_ACCESS_MODE_RWX
)

func testCreate(t *trial) {
	owner := map[string]string{}
	for _, v := range t.volumes("create", 3) {
		name := t.made(v)
		if other, taken := owner[name]; taken {
			t.Errorf("volumes %q and %q both have the device %q", other, v.id, name)
		}
		owner[name] = v.id
	}
}

// testRepeat: CreateDevice is idempotent.
func testRepeat(t *trial) {
	v := t.volume("repeat")
	name := t.made(v)
	for range 3 {
		t.still(v, name)
	}
}

// testOtherContexts: a retry with other contexts is for the same device; only
// access modes and volume mode count. Contexts change, for example the
// attachment's name.
func testOtherContexts(t *trial) {
	v := t.volume("contexts")
	name := t.made(v)
	for what, change := range map[string]func(*storagev1.CreateDeviceRequest){
		"publish_context": func(r *storagev1.CreateDeviceRequest) {
			r.PublishContext = with(r.PublishContext, "nv-volumeAttachmentName", "dputest-other")
		},
		"volume_context":     func(r *storagev1.CreateDeviceRequest) { r.VolumeContext = with(r.VolumeContext, "dputest", "other") },
		"storage_parameters": func(r *storagev1.CreateDeviceRequest) { r.StorageParameters = map[string]string{"dputest": "other"} },
		"contexts that are not": func(r *storagev1.CreateDeviceRequest) {
			r.PublishContext, r.VolumeContext, r.StorageParameters = nil, nil, nil
		},
	} {
		req := v.request()
		change(req)
		if again, err := t.create(t.ctx, req); err != nil || again != name {
			t.Errorf("CreateDevice(%q) again with other %s: %q, %v, want the existing device %q", v.id, what, again, err, name)
		}
	}
	t.still(v, name)
}

func with(m map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range m {
		if k != key {
			out[k] = v
		}
	}
	return out
}

// testDefaultVolumeMode: an empty volume_mode means Filesystem.
func testDefaultVolumeMode(t *trial) {
	v := t.volume("default")
	said, unsaid := v, v
	unsaid.mode = ""
	if t.mode == filesystem {
		name := t.made(said)
		t.still(unsaid, name)
		t.gone(said, name)
		name = t.made(unsaid)
		t.still(said, name)
		return
	}
	name := t.made(v)
	t.refused("CreateDevice of a block device again without volume_mode, which is Filesystem", unsaid.request())
	t.still(v, name)
}

func (t *trial) refused(what string, req *storagev1.CreateDeviceRequest) {
	t.Helper()
	name, err := t.create(t.ctx, req)
	switch {
	case err == nil:
		t.Errorf("%s: OK with the device %q, want FAILED_PRECONDITION", what, name)
	case status.Code(err) != codes.FailedPrecondition:
		t.Errorf("%s: %v, want FAILED_PRECONDITION", what, err)
	}
}

// testOtherAccessModes: a request with other access modes fails, and the device
// is unchanged.
func testOtherAccessModes(t *trial) {
	v := t.volume("modes")
	name := t.made(v)
	for _, modes := range [][]storagev1.AccessMode{{rwx}, {rwo}, append(slices.Clone(v.modes), unused(v.modes)), nil} {
		if slices.Equal(modes, v.modes) {
			continue
		}
		other := v
		other.modes = modes
		t.refused("CreateDevice again with other access_modes", other.request())
		t.still(v, name)
	}
}

func unused(modes []storagev1.AccessMode) storagev1.AccessMode {
	for m := rwo; ; m++ {
		if !slices.Contains(modes, m) {
			return m
		}
	}
}

// testOtherVolumeMode: the same for the volume mode.
func testOtherVolumeMode(t *trial) {
	v := t.volume("mode")
	name := t.made(v)
	other := v
	other.mode = t.other
	t.refused("CreateDevice again with volume_mode "+t.other, other.request())
	t.still(v, name)
}

// testBadRequests sends invalid and optional requests. INVALID_ARGUMENT is not
// a code of this contract, and refused requests must leave no device.
func testBadRequests(t *trial) {
	v := t.volume("bad")
	neighbour := t.volume("neighbour")
	name := t.made(neighbour)
	bad := func(change func(*storagev1.CreateDeviceRequest)) *storagev1.CreateDeviceRequest {
		req := v.request()
		change(req)
		return req
	}
	t.refused("CreateDevice without volume_id", bad(func(r *storagev1.CreateDeviceRequest) { r.VolumeId = "" }))
	t.refused("CreateDevice with volume_mode Nonsense", bad(func(r *storagev1.CreateDeviceRequest) { r.VolumeMode = "Nonsense" }))
	if c := map[string]Capability{block: blockDevice, filesystem: fsDevice}[t.other]; !t.announced[c] {
		t.refused("CreateDevice of a kind that is not announced", bad(func(r *storagev1.CreateDeviceRequest) { r.VolumeMode = t.other }))
	}
	t.absent(v, "")
	for what, req := range map[string]*storagev1.CreateDeviceRequest{
		"no access_modes":         bad(func(r *storagev1.CreateDeviceRequest) { r.AccessModes = nil }),
		"access mode unspecified": bad(func(r *storagev1.CreateDeviceRequest) { r.AccessModes = []storagev1.AccessMode{0} }),
		"an unknown access mode":  bad(func(r *storagev1.CreateDeviceRequest) { r.AccessModes = []storagev1.AccessMode{99} }),
		"no contexts": bad(func(r *storagev1.CreateDeviceRequest) {
			r.PublishContext, r.VolumeContext, r.StorageParameters = nil, nil, nil
		}),
		"an empty context key":      bad(func(r *storagev1.CreateDeviceRequest) { r.VolumeContext = with(r.VolumeContext, "", "") }),
		"a path as volume_id":       bad(func(r *storagev1.CreateDeviceRequest) { r.VolumeId = "../" + t.id + "/.." }),
		"a NUL in volume_id":        bad(func(r *storagev1.CreateDeviceRequest) { r.VolumeId = t.id + "\x00" }),
		"a volume_id of 4096 bytes": bad(func(r *storagev1.CreateDeviceRequest) { r.VolumeId = t.id + strings.Repeat("v", 4096-len(t.id)) }),
	} {
		made, err := t.create(t.ctx, req)
		if err != nil {
			t.absent(volume{id: req.VolumeId}, "")
			continue
		}
		t.Logf("a request with %s is accepted", what)
		if err := t.remove(t.ctx, req.VolumeId, made); err != nil {
			t.Errorf("DeleteDevice(%q, %q) of a device that was made from a request with %s: %v", req.VolumeId, made, what, err)
		}
		t.absent(volume{id: req.VolumeId}, made)
	}
	t.still(neighbour, name)
}

// testUnusable: a failed CreateDevice returns FAILED_PRECONDITION and leaves no
// device.
func testUnusable(t *trial) {
	if t.Unusable == nil {
		t.Log("not checked, since Options.Unusable is not set")
		return
	}
	v := t.volume("unusable")
	good := v.Contexts
	v.Contexts = t.Options.Unusable(t.T, v.id, v.mode)
	for range 2 {
		t.refused("CreateDevice with unusable contexts", v.request())
		t.absent(v, "")
	}
	if err := t.remove(t.ctx, v.id, ""); err != nil {
		t.Errorf("DeleteDevice(%q) after its CreateDevice failed: %v", v.id, err)
	}
	v.Contexts = good
	t.still(v, t.made(v))
}
