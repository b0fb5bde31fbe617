package ceph

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
)

func TestPoolOutside(t *testing.T) {
	const dump = `{"epoch":9,"pool_max":5,"pools":[{"pool":1,"pool_name":".mgr"},{"pool":5,"pool_name":"rbd"}]}`
	for _, c := range []struct {
		dump string
		id   int64
		want errs.Kind
		text string
	}{
		{dump, 5, errs.Precondition, "--ceph-pool rbd"},
		{dump, 3, errs.NotFound, "was deleted"},
		{dump, 6, errs.Precondition, "never had one, as the last one of cluster test is 5"},
		{`{"pools":[]}`, 3, errs.Internal, "pool_max"},
		{`{`, 3, errs.Internal, "osd dump"},
	} {
		err := poolOutside([]byte(c.dump), c.id, "volume v", "test")
		if errs.KindOf(err) != c.want || !strings.Contains(err.Error(), c.text) {
			t.Errorf("pool %d: %v (%s), want %s with %q", c.id, err, errs.KindOf(err), c.want, c.text)
		}
	}
}
