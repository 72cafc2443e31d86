package infer

// MediaKind states what a part of a conversation besides its text is.
type MediaKind uint8

// The kinds.
const (
	MediaImage MediaKind = iota
	MediaAudio
	MediaVideo
	NumMediaKinds
)

var mediaNames = [NumMediaKinds]string{"image", "audio", "video"}

// String returns the word that chat templates and engines have for the kind.
func (k MediaKind) String() string { return mediaNames[k] }

// Carries is what a wire must carry for media of the kind.
func (k MediaKind) Carries() Carries { return CarriesImage << k }

// CarriesMedia is what is needed for media of any kind.
const CarriesMedia = CarriesImage | CarriesAudio | CarriesVideo

// Media is a part of a conversation besides its text: by reference or as data.
type Media struct {
	Kind MediaKind
	// URL is from where the engine is to fetch it, http or https; empty where Data
	// holds it. Nothing is fetched before the engine.
	URL string
	// Type is the media type of Data, such as image/png.
	Type string
	// Data is base64 in the standard alphabet with padding, checked, and not empty.
	// It may be part of the caller's body, and nobody changes it.
	Data []byte
}
