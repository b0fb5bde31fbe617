package nft

import (
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestApplyAndHeld(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	f := open(t, config(t, "4420", "6800-7568"))
	wantHeld(t, f)
	for _, words := range [][]string{
		{"192.0.2.1/32"},
		{"192.0.2.0/24", "2001:db8::/32"},
		{"0.0.0.0/1", "255.255.255.255/32", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"},
		{"0.0.0.0/0", "::/0"},
		{"128.0.0.0/1", "::/128", "8000::/1"},
		{"0.0.0.0/32"},
		{},
		{},
	} {
		apply(t, f, blocks(words...)...)
		wantHeld(t, f, words...)
	}
	t.Log(testkit.Run(t, "nft", "list", "ruleset"))
	t.Logf("%+v", f.Status())
}
