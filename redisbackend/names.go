package redisbackend

import "strings"

// names are the Redis keys and the channel of one key.
type names struct {
	lease   string // "id token attempt since holder", expires with the lease
	counter string // hash: the last token, the attempt, the last grants that were given back and taken away
	waiters string // exists while somebody waits
	channel string // says that the key is free
}

// escape makes the braces of a key harmless, and keeps different keys apart.
var escape = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// names returns the names for key. What is between the braces is all that Redis
// Cluster looks at to choose a node, so the Redis keys of one key are together.
// It ends at the first closing brace and must not be empty, so the key goes in
// without braces of its own, and is never empty.
func (l *Leases) names(key string) names {
	tagged := l.cfg.Prefix + "{" + escape.Replace(key) + "}:"
	return names{lease: tagged + "lease", counter: tagged + "counter", waiters: tagged + "waiters", channel: tagged + "free"}
}
