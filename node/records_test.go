package node

import (
	"encoding/json"
	"testing"

	"github.com/cleatproject/cleat/volume"
)

// Earlier releases wrote this form.
func TestRecordFormat(t *testing.T) {
	group := 7
	rec := publishRecord{
		Volume: "v", Staging: "/s", ReadOnly: true, State: creating,
		Capability: storedCapability{FSType: "xfs", MountGroup: &group, Mode: volume.SingleNodeReaderOnly, Flags: "f", Superblock: "g"},
		Inline: &inlineRecord{
			Name: "n", Volume: "e", Locator: map[string]string{"k": "l"},
			InlineVolume: InlineVolume{Size: volume.SizeRange{Required: 1, Limit: 2}, FSType: "xfs", Parameters: map[string]string{"p": "q"}},
		},
	}
	got, err := json.Marshal(rec)
	want := `{"volume":"v","staging":"/s","capability":{"fsType":"xfs","mountGroup":7,"mode":"reader-only","flags":"f","superblock":"g"},` +
		`"readOnly":true,"state":"making","ephemeral":{"name":"n","size":{"Required":1,"Limit":2},"fsType":"xfs","parameters":{"p":"q"},` +
		`"volume":"e","locator":{"k":"l"}},"boot":""}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}
