package cephfs

import "github.com/cleatproject/cleat/volume/access"

// For tests.
var (
	IsOwnSubvolume = isOwnSubvolume
	SplitSnapshot  = splitSnapshot
	IsDead         = isDead
)

// Place returns a volume's name and path on this machine.
func (a *Attacher) Place(l access.CephFS) (name, path string) {
	v := a.volumeOf(l)
	return v.name, v.path()
}
